"""Buffers of a model that is called with copies of its weights in another type."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from overdrive.seams.torch.weights import Copies  # noqa: E402


class Scaled(torch.nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.register_buffer("scale", scale)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale


class Normed(torch.nn.Module):
    """With running means of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("spread", torch.ones(4))

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.batch_norm(x, self.mean, self.spread, training=self.training)


def called(model: Any) -> Any:
    return Copies(torch.float32, torch.float64).call(model, model, (torch.randn(3, 4) + 2,), {})


def test_a_buffer_whose_numbers_share_their_memory_is_no_error() -> None:
    model = Scaled(torch.ones(1).expand(4))
    assert called(model).shape == (3, 4) and model.scale.tolist() == [1.0] * 4


def test_what_no_normalisation_writes_to_is_not_compared() -> None:
    model = Scaled(torch.ones(4, 4)[:3])
    with mock.patch("torch.where", side_effect=torch.where) as compared:
        called(model)
    assert not compared.called


@pytest.mark.parametrize("make", [lambda: torch.nn.BatchNorm1d(4), Normed, lambda: Scaled(torch.ones(4))])
def test_running_means_are_kept_and_what_stays_keeps_its_digits(make: Any) -> None:
    torch.manual_seed(0)
    model = make()
    before = {name: each.clone() for name, each in model.named_buffers()}
    called(model)
    kept = isinstance(model, Scaled)
    assert all(torch.equal(each, before[name]) is kept for name, each in model.named_buffers())
