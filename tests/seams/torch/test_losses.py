"""The seam *loss computed*: PyTorch's functions for losses are what they are for whoever does not call them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from overdrive.worker.session import Session


def focal_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = torch.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    return (found * torch.sigmoid(x)).sum() + torch.nn.functional.cross_entropy(x, y) + torch.unique(y).sum()


class Compared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = torch.nn.SmoothL1Loss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(x, y)


def listening(heard: list[str]) -> Any:
    def observe(seams: Any) -> None:
        seams.loss_computed.subscribe(lambda name, *_: heard.append(name))
        seams.shape_asked.subscribe(lambda subject, call: call())

    return observe


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torchscript_compiles_what_calls_a_loss() -> None:
    """As libraries of detection do with their focal loss, when they are imported."""
    x, y, heard = torch.tensor([[0.5, 2.0]]), torch.tensor([[0.0, 1.0]]), []
    expected = focal_loss(x, y), Compared()(x, y)
    with Session(observers=[listening(heard)]):
        made = torch.jit.script(focal_loss), torch.jit.script(Compared())
        assert [each(x, y) for each in made] == list(expected) and not heard
        assert torch.jit.script(F.mse_loss)(x, y) == F.mse_loss(x, y)
    assert heard == ["mse_loss"]
    assert [each(x, y) for each in made] == list(expected)


def test_a_loss_warns_of_the_program_s_line() -> None:
    with Session(observers=[listening([])]), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        F.mse_loss(torch.ones(2, 1), torch.ones(2))
    assert [each.filename for each in warned] == [__file__]
