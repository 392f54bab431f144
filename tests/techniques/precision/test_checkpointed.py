"""Programs with `torch.utils.checkpoint`, while their model is called in another type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from overdrive.worker.session import Session


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.weight = nn.Parameter(torch.eye(8))
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(8) if x.dtype is not torch.bfloat16 else 0  # of the default type, which has to be x's
        return x + linear(torch.tanh(self.norm(self.fc(x))), self.weight) * self.scale + made


def of_module(blocks: Any, x: torch.Tensor, reentrant: bool) -> Any:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=reentrant)
    return x


def of_function(blocks: Any, x: torch.Tensor, reentrant: bool) -> Any:
    """It reads weights without calling a module that holds them."""
    for block in blocks:
        x = checkpoint(lambda x, each=block: linear(x.relu(), each.weight) * each.scale, x, use_reentrant=reentrant)
    return x


def of_function_of_functions(blocks: Any, x: torch.Tensor, reentrant: bool) -> Any:
    return checkpoint(of_module, blocks, x, reentrant, use_reentrant=reentrant)


def of_sequence(blocks: Any, x: torch.Tensor, reentrant: bool) -> Any:
    return checkpoint_sequential(blocks, 2, x, use_reentrant=reentrant)


def nowhere(blocks: Any, x: torch.Tensor, reentrant: bool) -> Any:
    for block in blocks:
        x = block(x)
    return x


class Net(nn.Module):
    def __init__(self, way: Any, reentrant: bool) -> None:
        super().__init__()
        self.begin, self.blocks = nn.Linear(8, 8), nn.Sequential(Block(), Block(), Block())
        self.way, self.reentrant = way, reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return self.way(self.blocks, self.begin(x), self.reentrant)


def train(way: Any, reentrant: bool, *techniques: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with Session(techniques) as session:
            model, losses = Net(way, reentrant), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                loss = model(torch.randn(6, 8)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert not session.seams.left_out
        return losses, [each.detach().clone() for each in model.parameters()]
    finally:
        torch.set_default_dtype(torch.float32)


TECHNIQUES = [
    (("bf16_weights", {}), torch.float32),
    (("fp32_from_fp64", {"weights": "copied"}), torch.float64),
    (("fp32_from_fp64", {"weights": "narrowed"}), torch.float64),
]


@pytest.mark.parametrize(("technique", "dtype"), TECHNIQUES)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", [of_module, of_function, of_function_of_functions, of_sequence])
def test_what_is_computed_again_is_computed_as_the_first_time(
    way: Any, reentrant: bool, technique: Any, dtype: Any
) -> None:
    plain, _ = train(way, reentrant, dtype=dtype)
    losses, parameters = train(way, reentrant, technique, dtype=dtype)
    assert losses == pytest.approx(plain, rel=0.05) and losses != plain
    if way is of_module:
        at_once, others = train(nowhere, reentrant, technique, dtype=dtype)
        assert losses == at_once and all(map(torch.equal, parameters, others))


@pytest.mark.parametrize(("technique", "dtype"), TECHNIQUES[:2])
def test_hooks_of_parameters_that_a_call_does_not_use_are_not_called(technique: Any, dtype: torch.dtype) -> None:
    with Session([technique]):
        model: Any = nn.ModuleDict({"used": nn.Linear(4, 4), "not": nn.Linear(4, 4)}).to(dtype)
        model.forward = lambda x: model["used"](x)
        seen: list[Any] = []
        for each in model.parameters():
            each.register_hook(lambda gradient: seen.append(gradient.dtype))
            each.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.dtype))
        torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4, dtype=dtype)).sum().backward()
    assert seen == [dtype] * 4
