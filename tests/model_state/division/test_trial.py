"""How a call is divided, as its trial finds it: in this process and its forks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from overdrive.model_state.division import backward
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Chance
from overdrive.model_state.division.norms import Norms
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.division.trial import find_way


def way_of(model: torch.nn.Module, given: torch.Tensor | None = None) -> dict[str, Any]:
    """Of a call on that or eight samples, for two ranks."""
    leaves, build = flatten(((torch.randn(8, 6) if given is None else given,), {}))
    return find_way(CallToDivide(model, model, leaves, build, 2, Chance(), Norms(None)))


class Centred(nn.Module):
    def __init__(self, coupled: bool) -> None:
        super().__init__()
        self.inner, self.gain, self.head = nn.Linear(6, 8), nn.Parameter(torch.zeros(8)), nn.Linear(8, 3)
        nn.init.zeros_(self.head.weight)
        self._coupled = coupled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        return self.head(self.gain * (inner - inner.mean(0) if self._coupled else inner))


@pytest.mark.parametrize("coupled", [True, False])
def test_what_lies_behind_weights_that_are_zero_at_first_is_seen(coupled: bool) -> None:
    model = Centred(coupled)
    found = way_of(model)
    assert ("depends on the rest of its batch" in found.get("reason", "")) is coupled
    assert coupled or found["split"] == [0]
    assert not model.head.weight.any() and not model.gain.any()  # those of the program stay what they are


class Ordered(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.view(8, 6))


@pytest.mark.parametrize(
    ("model", "given", "why"),
    [
        (nn.Linear(6, 3), torch.randn(6), "it is called with a single vector, which cannot be divided"),
        (Ordered(6, 3), torch.randn(8, 6), "a part of its batch fails (RuntimeError: shape"),
    ],
)
def test_a_single_vector_is_told_from_a_batch_whose_parts_fail(model: nn.Module, given: torch.Tensor, why: str) -> None:
    assert way_of(model, given)["reason"].startswith(why)


class Reads(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.ops.aten._local_scalar_dense(x.detach().sum())  # as code in C++ asks


class OverGraph(nn.Linear):
    """Of all nodes (a graph convolution), or of each by itself, with a sparse table beside it."""

    def __init__(self, mixes: bool) -> None:
        super().__init__(6, 3)
        self._mixes = mixes

    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        return graph @ super().forward(x) if self._mixes else super().forward(x) + graph.sum()


@pytest.mark.parametrize(
    ("mixes", "told"),
    [
        (True, {"reason": "it is given a sparse matrix, as that of a graph, which cannot be divided with the rest"}),
        (False, {"split": [0, None]}),
    ],
)
def test_a_sparse_matrix_is_no_batch(mixes: bool, told: dict[str, Any]) -> None:
    leaves, build = flatten(((torch.randn(8, 6), torch.eye(8).to_sparse()), {}))
    model = OverGraph(mixes)
    found = find_way(CallToDivide(model, model, leaves, build, 2, Chance(), Norms(None)))
    assert found | told == found


def test_what_is_read_of_a_batch_is_named_as_it_is_written() -> None:
    found = way_of(Reads(6, 3))
    assert found["reason"].endswith("(item)")


class Made(torch.autograd.Function):
    """What a gradient may be made to be: `how` of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: Any) -> torch.Tensor:
        ctx.how = how
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.how(gradient), None


class Steered(nn.Module):
    def __init__(self, how: Any, by_hook: bool) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self._how, self._by_hook = how, by_hook

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        if not self._by_hook:
            inner = Made.apply(inner, self._how)
        elif inner.requires_grad:
            inner.register_hook(self._how)
        return self.head(self.norm(inner))


@pytest.mark.parametrize("at_once", [backward._AT_ONCE, 1])
@pytest.mark.parametrize("by_hook", [True, False])
@pytest.mark.parametrize(
    ("how", "divides"),
    [
        (lambda gradient: -0.5 * gradient, True),
        (lambda gradient: gradient.clamp(-0.01, 0.01), False),
        (lambda gradient: gradient / gradient.norm(), False),
        (lambda gradient: gradient - gradient.mean(0), False),
    ],
)
def test_gradients_that_are_not_those_of_samples_are_seen(
    how: Any, divides: bool, by_hook: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result shows them. Gradients of a large model are made some at a time."""
    monkeypatch.setattr(backward, "_AT_ONCE", at_once)
    torch.manual_seed(0)
    model = Steered(how, by_hook)
    found = way_of(model)
    assert ("makes other gradients of a part" in found.get("reason", "")) is not divides, found


class Looks(nn.Module):
    """At a gradient, as pictures of what a model looks at are made."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.gradient: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        inner.register_hook(self._keep)
        return self.head(inner)

    def _keep(self, gradient: torch.Tensor) -> None:
        self.gradient = gradient


def test_what_is_kept_of_a_gradient_is_seen() -> None:
    model = Looks()
    found = way_of(model)
    assert found == {"reason": "it keeps something of the backward pass: 'gradient' of a Looks"}
    assert model.gradient is None


def test_hooks_on_what_is_trained_are_for_the_whole() -> None:
    """Before them, in a run, gradients are averaged."""
    model = nn.Linear(6, 3)
    model.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    assert way_of(model)["split"] == [0]
    model(torch.ones(8, 6)).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.max() == 0.01


class Large(Centred):
    """In fp64 there is no memory for a call of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64 and len(x) < 8:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        return super().forward(x)


@pytest.mark.parametrize("coupled", [True, False])
def test_where_fp64_has_no_memory_the_trial_is_in_the_models_own_precision(coupled: bool) -> None:
    model = Large(coupled)
    found = way_of(model)
    assert ("depends on the rest of its batch" in found.get("reason", "")) is coupled
    assert coupled or found["split"] == [0]
    assert not model.head.weight.any()
