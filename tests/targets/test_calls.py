"""Which calls of a program are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overdrive.targets.child import calls, exporting
from overdrive.targets.child.calls import CalledModel
from overdrive.targets.child.flat import input_names, output_names, tensors_of
from overdrive.targets.child.recorder import CallRecorder
from overdrive.targets.order import Made, Order
from overdrive.worker.session import Session


def kept(called: CalledModel) -> list[float]:
    return [float(tensors_of(call)[0][0]) for shape in called.shapes.values() for call in shape.kept]


def test_evaluation_takes_the_place_of_training_and_the_last_calls_that_of_the_first() -> None:
    called = CalledModel(torch.nn.Linear(1, 1))
    for number in range(3):
        called.note((torch.full((2,), float(number)),), {})
    called.model.eval()
    for number in range(10, 30):
        called.note((torch.full((2,), float(number)),), {})
    called.model.train()
    called.note((torch.zeros(2),), {})
    assert kept(called) == [float(number) for number in range(18, 30)]
    assert called.count == 24


def test_what_is_kept_is_a_copy() -> None:
    called, given = CalledModel(torch.nn.Linear(1, 1).eval()), torch.ones(2)
    called.note((given,), {})
    given.zero_()
    assert kept(called) == [1.0]


def test_names_come_from_the_model_and_from_what_it_returns() -> None:
    class Decoder(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, state: tuple[torch.Tensor, ...], mask: torch.Tensor) -> None: ...

    called = CalledModel(Decoder().eval())
    one = torch.ones(1)
    called.note((one, (one, one)), {"mask": one})
    call = next(iter(called.shapes.values())).kept[0]
    assert input_names(called.model, call) == ["tokens", "state_0", "state_1", "mask"]
    assert output_names(one) == ["output"]
    assert output_names((one, {"hidden": one})) == ["output_0", "output_1_hidden"]


@pytest.mark.parametrize("to_end", [False, True])
def test_a_script_that_is_ended_before_its_end_is_told(
    to_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model may be as it was before training."""
    monkeypatch.setattr(exporting, "export", lambda called, name, *_: Made(model=name))
    recorder, model = CallRecorder(Order("onnx", to_end=to_end), tmp_path), torch.nn.Linear(1, 1)
    with Session([], [recorder]):
        model(torch.ones(1, 1))
    assert recorder.report()["notes"] == []
    assert recorder.goes_on() is to_end
    assert [("--to-end" in each) for each in recorder.report()["notes"]] == ([] if to_end else [True])


def test_of_calls_that_are_too_large_one_of_each_shape_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MOST_BYTES", 8)
    called = CalledModel(torch.nn.Linear(1, 1).eval())
    for number, size in enumerate((4, 5, 4)):
        called.note((torch.full((size,), float(number)),), {})
        assert all(len(shape.kept) == 1 for shape in called.shapes.values())
    assert kept(called) == [2.0, 1.0]
