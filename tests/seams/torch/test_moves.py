"""The seam *tensor moved*: which of the program's calls it sees, and that it is gone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from overdrive.seams.hub import Seams
from overdrive.worker.session import Session

META = torch.device("meta")


def watching(seen: list[Any], answer: Any = None) -> Any:
    def observer(seams: Seams) -> None:
        def moved(tensor: Any, call: Any, device: torch.device) -> Any:
            seen.append(device)
            return call(device) if answer is None else answer

        with seams.owned_by("mover"):
            seams.tensor_moved.subscribe(moved)

    return observer


def test_plain_copies_to_another_device_are_seen_however_they_are_asked_for() -> None:
    seen: list[Any] = []
    x = torch.randn(3)
    with Session(observers=[watching(seen)]):
        copies = [
            x.to("meta"), x.to(META), x.to(device="meta"), x.to("meta", non_blocking=True), x.to("meta", torch.float32),
            x.to(META, None, True), x.to(torch.empty(1, device="meta")),
            x.to("meta", memory_format=torch.preserve_format),
        ]  # fmt: skip
    assert seen == [META] * 8 and all(copy.device == META and copy.shape == (3,) for copy in copies)


def test_what_is_more_than_a_copy_goes_past_it() -> None:
    seen: list[Any] = []
    x = torch.randn(2, 3, 4, 4)
    with Session(observers=[watching(seen)]):
        assert x.to("cpu") is x and x.to(torch.float64).dtype is torch.float64
        assert x.to("meta", torch.float64).dtype is torch.float64
        assert x.to("meta", copy=True).device == META and x.to("cpu", copy=True) is not x
        assert x.to("meta", memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)
        nn.Linear(2, 2).to("meta")
        nn.Parameter(x).to("meta")
        with pytest.raises(RuntimeError):
            x.to("nowhere")
        with pytest.raises((TypeError, RuntimeError)):
            x.to(object())
    assert not seen


def test_an_answer_takes_the_place_of_the_copy() -> None:
    ready = torch.empty(3, device="meta")
    with Session(observers=[watching([], ready)]):
        assert torch.randn(3).to("meta") is ready


def test_an_error_of_the_mover_falls_back_to_the_copy() -> None:
    def observer(seams: Seams) -> None:
        with seams.owned_by("mover"):
            seams.tensor_moved.subscribe(lambda tensor, call, device: 1 / 0)

    with Session(observers=[observer]) as session:
        assert torch.randn(3).to("meta").device == META
    assert "ZeroDivisionError" in session.seams.left_out["mover"]


def test_a_model_whose_parameters_are_not_made_yet_is_moved() -> None:
    seen: list[Any] = []
    with Session(observers=[watching(seen)]):
        layer = nn.LazyLinear(3).to("meta")
    assert layer.weight.device == layer.bias.device == META and not seen


def test_the_methods_are_put_back() -> None:
    before = torch.Tensor.to, torch.Tensor.cuda
    allowed = UninitializedTensorMixin._allowed_methods
    with Session():
        assert (torch.Tensor.to, torch.Tensor.cuda) == before
    with Session(observers=[watching([])]):
        assert torch.Tensor.to is not before[0] and torch.Tensor.cuda is not before[1]
    assert (torch.Tensor.to, torch.Tensor.cuda) == before
    assert "to" not in vars(torch.Tensor) and "cuda" not in vars(torch.Tensor)
    assert UninitializedTensorMixin._allowed_methods is allowed
