"""Which calls of a program are kept."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from overdrive.targets.child import exporting
from overdrive.targets.child import kept as keeping
from overdrive.targets.child.recorder import CallRecorder
from overdrive.targets.child.torch.calls import CalledModel
from overdrive.targets.child.torch.flat import input_names, output_names, tensors_of
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
    monkeypatch.setattr(exporting, "export", lambda called, subject_of, name, *_: Made(model=name))
    recorder, model = CallRecorder(Order("onnx", to_end=to_end), tmp_path), torch.nn.Linear(1, 1)
    with Session([], [recorder]):
        model(torch.ones(1, 1))
    assert recorder.report()["notes"] == []
    assert recorder.goes_on() is to_end
    assert [("--to-end" in each) for each in recorder.report()["notes"]] == ([] if to_end else [True])


class Exports:
    """Stands in for the export; keeps what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exporting, "export", self)

    def __call__(self, called: CalledModel, subject_of: Any, name: str, others: Any, *_: Any) -> Made:
        self.called, self.name, self.others = called, name, others
        return Made(model=name)


@pytest.mark.parametrize(("asked", "second"), [("", False), ("Linear", False), ("Linear:1", False), ("Linear:2", True)])
def test_of_two_models_of_one_class_the_second_has_a_name(
    asked: str, second: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy of the best weights."""
    exports, recorder = Exports(monkeypatch), CallRecorder(Order("onnx", model=asked), tmp_path)
    model = torch.nn.Linear(1, 1)
    best = copy.deepcopy(model)
    with Session([], [recorder]):
        for each in (model, best, best):
            each(torch.ones(1, 1))
    recorder.report()
    assert exports.called.model is (best if second else model) and exports.name == "Linear"
    assert dict(exports.others) == ({"Linear": 1} if second else {"Linear:2": 2})


def test_a_name_that_no_model_has_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    recorder = CallRecorder(Order("onnx", model="Linear:40"), tmp_path)
    with Session([], [recorder]):
        for _ in range(9):
            torch.nn.Linear(1, 1)(torch.ones(1, 1))
    told = recorder.report()["refused"]
    assert told.startswith("the program calls no model Linear:40, but Linear, Linear:2, ") and "and 3 more" in told


def test_models_that_are_not_exported_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each fold one, say, on a GPU."""
    exports, recorder = Exports(monkeypatch), CallRecorder(Order("onnx"), tmp_path)
    with Session([], [recorder]):
        folds = [torch.nn.Linear(1, 1) for _ in range(3)]
        for each in folds:
            each(torch.ones(1, 1))
        known = [weakref.ref(each) for each in folds]
        del folds, each
        gc.collect()
        assert [each() is None for each in known] == [False, True, True]
        other = torch.nn.Linear(1, 1)  # it may have the place of one that is gone
        other(torch.ones(1, 1))
    recorder.report()
    assert dict(exports.others) == {"Linear:2": 1, "Linear:3": 1, "Linear:4": 1}


def test_wrappers_are_the_model_that_they_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for training and called as it is for evaluation; spread over GPUs, of which nothing is left here."""
    exports, recorder = Exports(monkeypatch), CallRecorder(Order("onnx"), tmp_path)
    model = torch.nn.Linear(1, 1)
    spread = torch.nn.DataParallel(model)
    compiled = torch.compile(model, backend="eager")
    with Session([], [recorder]):
        compiled(torch.ones(1, 1))
        spread(torch.ones(1, 1))
        model.eval()(torch.ones(1, 1))
    recorder.report()
    assert exports.called.model is model and exports.name == "Linear" and not exports.others
    assert exports.called.count == 3 and exports.called.evaluated


def test_of_calls_that_are_too_large_one_of_each_shape_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_MOST_BYTES", 8)
    called = CalledModel(torch.nn.Linear(1, 1).eval())
    for number, size in enumerate((4, 5, 4)):
        called.note((torch.full((size,), float(number)),), {})
        assert all(len(shape.kept) == 1 for shape in called.shapes.values())
    assert kept(called) == [2.0, 1.0]
