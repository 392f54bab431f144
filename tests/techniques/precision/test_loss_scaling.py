"""`autocast` in fp16 scales the loss: whatever the program does, it finds gradients that are not scaled."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.session import Session

HALF = ("autocast", {"dtype": "float16"})


def network() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)))


def loss_of(model: nn.Module) -> Any:
    return model(torch.ones(16, 8)).square().mean()


def an_optimizer_for_each_stage(model: nn.Module) -> list[Any]:
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        loss_of(model).backward()
    return [each.grad for each in model.parameters()]


def two_optimizers_at_once(model: nn.Module) -> list[Any]:
    kept = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    loss_of(model).backward()
    return [each.grad for each in model.parameters() if kept]


def thawed(model: Any) -> list[Any]:
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    model[0].requires_grad_(True)
    optimizer.zero_grad()
    loss_of(model).backward()
    return [each.grad for each in model.parameters()]


def added(model: Any) -> list[Any]:
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    optimizer.add_param_group({"params": [*model[0].parameters(), *model[2].parameters()]})
    loss_of(model).backward()
    return [each.grad for each in model.parameters()]


def asked(model: nn.Module) -> list[Any]:
    torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()  # the first one has hooked all there are
    return list(torch.autograd.grad(loss_of(model), list(model.parameters())))


class Remade(torch.autograd.Function):
    """As functions that keep nothing have it: their backward asks for gradients of the parameters itself."""

    @staticmethod
    def forward(ctx: Any, model: nn.Module, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.model, ctx.parameters = model, parameters
        ctx.save_for_backward(x)
        return model(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            made = ctx.model(*ctx.saved_tensors)
        return None, None, *torch.autograd.grad(made, ctx.parameters, gradient)


def asked_within_a_backward_pass(model: nn.Module) -> list[Any]:
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    Remade.apply(model, torch.ones(16, 8), *model.parameters()).square().mean().backward()  # type: ignore[no-untyped-call]
    return [each.grad for each in model.parameters() if kept]


def without_recording(model: nn.Module) -> list[Any]:
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_of(model)
    with torch.no_grad():
        loss.backward()
    return [each.grad for each in model.parameters() if kept]


def some_only(model: Any) -> list[Any]:
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward(inputs=list(model[1].parameters()))
    return [each.grad for each in model[1].parameters() if kept]


WAYS = (
    an_optimizer_for_each_stage,
    two_optimizers_at_once,
    thawed,
    added,
    asked,
    asked_within_a_backward_pass,
    without_recording,
    some_only,
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("also", [None, "micro_batch", "activation_checkpointing"])
def test_gradients_are_not_scaled(way: Callable[[nn.Module], list[Any]], also: str | None) -> None:
    torch.manual_seed(0)
    plain = way(network())
    torch.manual_seed(0)
    with Session([*([(also, {})] if also else []), HALF]) as session:
        found = way(network())
    assert "autocast" not in session.seams.left_out
    for ours, theirs in zip(found, plain, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.02


def test_hooks_go_with_their_parameters_and_with_the_session() -> None:
    with Session([HALF]):
        gone, model = network(), network()
        torch.optim.SGD(gone.parameters(), lr=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for each in (gone, model):
            loss_of(each).backward()
        assert all(each._backward_hooks for each in model.parameters())
        watched = weakref.ref(next(gone.parameters()))
        del gone, each
        assert watched() is None and optimizer
    assert not any(each._backward_hooks for each in model.parameters())
