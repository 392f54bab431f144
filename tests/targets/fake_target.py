"""A target for tests in their own process: the exported graph itself answers, with no library and no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from overdrive.targets.child import exporting, formats, runner
from overdrive.targets.child.torch import graph
from overdrive.targets.child.torch.calls import CalledModel
from overdrive.targets.child.torch.subject import subject_of
from overdrive.targets.order import SIGNATURE, Made, Order, made_in, write_order

Change = Callable[[dict[str, Any], list[Any]], list[Any]]  # of the answers, by the inputs


def install(monkeypatch: pytest.MonkeyPatch, change: Change | None = None) -> None:
    """`change`: what this engine gets wrong."""
    graphs: list[Any] = []

    def write(target: str, made: Any, shapes: Any, names: Any, folder: Path) -> None:
        graphs.append((made.module(), names))

    def placed(target: str, folder: Path, signature: Any) -> runner.Answer:
        runner.write_signature(folder, signature)
        module, names = graphs[-1]

        def answer(inputs: Any) -> dict[str, Any]:
            with torch.no_grad():
                made = [each.numpy() for each in module(*(torch.from_numpy(inputs[name]) for name in names.inputs))]
            return dict(zip(names.outputs, change(inputs, made) if change else made, strict=True))

        return answer

    monkeypatch.setattr(graph, "write", write)
    monkeypatch.setitem(formats.ARTEFACTS, "fake", "model.fake")
    monkeypatch.setattr(formats, "versions", lambda target, framework: {"torch": "0"})
    monkeypatch.setattr(runner, "placed", placed)
    monkeypatch.setattr("overdrive.targets.child.timing._SECONDS", 0.0)
    monkeypatch.setattr("overdrive.targets.child.dimensions._LONG", float("inf"))  # however busy the machine is


def exported(called: CalledModel, folder: Path) -> tuple[Made, Any]:
    """What came of it, and the signature; None where it was refused."""
    write_order(folder, Order("fake"))
    made = exporting.export(called, subject_of, type(called.model).__name__, {}, Order("fake"), folder)
    path = made_in(folder) / SIGNATURE
    return made, json.loads(path.read_text()) if path.exists() and not made.refused else None


def called(model: torch.nn.Module, *calls: tuple[Any, ...], **kwargs: Any) -> CalledModel:
    """As if a program had made these calls."""
    found = CalledModel(model)
    for args in calls:
        found.note(args, kwargs)
    return found
