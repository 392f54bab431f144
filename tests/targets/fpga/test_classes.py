"""Whether a design is held to its largest output or to each: as the script's own losses show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.targets.child.recorder import CallRecorder
from overdrive.targets.fpga import design as designs
from overdrive.targets.fpga.front_end import FrontEnd, Layers
from overdrive.targets.fpga.of_torch import TorchFrontEnd, TorchLayers
from overdrive.targets.fpga.verdict import Designed, verdict
from overdrive.targets.order import DESIGN, FPGA, TIMES, Order, made_in
from overdrive.worker.session import Session


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hls4ml would do, by PyTorch."""

    class NoGraph:
        def get_layers(self) -> list[Any]:
            return []

    def emulated(front: FrontEnd, config: Any, layers: Layers, types: Any, inputs: Any, place: Path) -> Any:
        return layers.answers(inputs, types).reshape(len(inputs), -1), NoGraph()

    monkeypatch.setattr(designs, "_read", lambda front, shape: {})
    monkeypatch.setattr(designs, "_emulated", emulated)
    monkeypatch.setattr(designs, "_verilog", lambda *_: {"left_out": "not asked for"})


def exported(train: Any, folder: Path, softmax: bool = False) -> tuple[dict[str, Any], Designed | str, list[str]]:
    """Of a program that calls a model of 6 outputs, and what it computes of them."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6)]
    model = nn.Sequential(*layers, *([nn.Softmax(1)] if softmax else []))
    recorder, rows = CallRecorder(Order(FPGA, margin=0.01), folder), torch.randn(1200, 6)
    with Session([], [recorder]):
        train(model, rows[:8])
        model.eval()
        with torch.no_grad():
            model(rows)
    made = recorder._made()
    assert not made.refused
    (folder / TIMES).write_text("[]")
    told = json.loads((folder / DESIGN).read_text())
    return told, verdict(folder, folder, "Net", made.notes, {"hls4ml": "1"}), list(made.notes)


def rebuilt(model: nn.Module, rows: torch.Tensor) -> None:
    F.mse_loss(model(rows), rows).backward()


def weighed(model: nn.Module, rows: torch.Tensor) -> None:
    nn.BCEWithLogitsLoss()(model(rows), (rows > 0).float()).backward()


def by_hand(model: nn.Module, rows: torch.Tensor) -> None:
    (model(rows) - rows).abs().sum().backward()


def both(model: nn.Module, rows: torch.Tensor) -> None:
    (F.cross_entropy(model(rows), rows.argmax(1)) + F.mse_loss(model(rows), rows)).backward()


def of_others(model: nn.Module, rows: torch.Tensor) -> None:
    F.cross_entropy(model(rows)[:, :2], rows[:, :2].argmax(1)).backward()


@pytest.mark.parametrize("train", [rebuilt, weighed, by_hand, both, of_others])
def test_outputs_that_are_no_classes_are_held_to_their_values(train: Any, emulation: None, tmp_path: Path) -> None:
    told, result, notes = exported(train, tmp_path)
    assert told["classes"] == 0 and isinstance(result, Designed) and result.error <= 0.01
    assert "of their size off" in result.sentence and "class" not in result.sentence
    assert "held to their values" in notes[-1]


def classified(model: nn.Module, rows: torch.Tensor) -> None:
    nn.CrossEntropyLoss()(model(rows), target=rows.argmax(1)).backward()


def likely(model: nn.Module, rows: torch.Tensor) -> None:
    F.nll_loss(input=model(rows).log_softmax(1), target=rows.argmax(1)).backward()


@pytest.mark.parametrize("train", [classified, likely])
def test_outputs_of_a_loss_of_classes_are_classes(train: Any, emulation: None, tmp_path: Path) -> None:
    told, result, notes = exported(train, tmp_path)
    assert told["classes"] == 6 and not any("held to" in each for each in notes)
    assert isinstance(result, Designed) and "have another class" in result.sentence


class Weighs(nn.Module):
    """Its last layer by registration is a softmax, and not the one that answers, if it is called at all."""

    def __init__(self, within: Any, at_the_end: Any) -> None:
        super().__init__()
        self.fc, self.within, self.at_the_end = nn.Linear(6, 6), within, at_the_end
        self.attend = nn.Softmax(1)

    def forward(self, rows: torch.Tensor) -> Any:
        return self.at_the_end(self.fc(rows) * self.within(self, rows))


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (Weighs(lambda self, rows: self.attend(rows), nn.Identity()), False),
        (Weighs(lambda self, rows: rows, nn.Identity()), False),
        (Weighs(lambda self, rows: rows, nn.LogSoftmax(1)), True),
        (Weighs(lambda self, rows: rows, lambda rows: F.softmax(rows, 1)), True),
        (Weighs(lambda self, rows: rows, lambda rows: rows.log_softmax(1)), True),
    ],
)
def test_the_layer_that_answers_tells_whether_a_model_ends_in_a_softmax(model: nn.Module, classes: bool) -> None:
    assert TorchLayers(model).ends_in_softmax is classes


def test_a_model_that_ends_in_a_softmax_has_classes(emulation: None, tmp_path: Path) -> None:
    assert exported(lambda model, rows: model(rows), tmp_path, softmax=True)[0]["classes"] == 6


def test_of_several_places_no_class_stands_for_all(emulation: None, tmp_path: Path) -> None:
    """A class of each was proved by the largest output of all of them."""
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), nn.Softmax(1)).eval(), torch.randn(1200, 6)
    made_in(tmp_path).mkdir()
    notes = designs.design(TorchFrontEnd(model), [rows.numpy()], 0.01, tmp_path, of_classes=lambda outputs: True)
    told = json.loads((tmp_path / DESIGN).read_text())
    assert told["classes"] == 0 and "several places" in notes[0]
