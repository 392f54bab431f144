"""What the parent orders of an export, and what its trial answers: plain data, in files of one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overdrive.core.json_data import from_json, to_json

FOLDER = "OVERDRIVE_EXPORT"  # the variable that names it
OBSERVER = "overdrive.targets.child.recorder"
_ORDER = "order.json"
TIMES = "times.json"
SIGNATURE = "signature.json"
LATENCY = "latency.json"  # calls of the shapes that the program sends most, the most usual first
FPGA, TRITON = "fpga", "triton"
ANSWERS, DESIGN, RTL = "answers.npz", "design.json", "rtl"  # of a design for an FPGA


@dataclass(frozen=True)
class Order:
    target: str
    model: str = ""  # the model to be exported, by its class, or `Net:2`, the second of that; "": the first called
    to_end: bool = False  # the program runs to its end, however long it has answered
    margin: float = 0.0  # for an FPGA: the share of inputs whose class may be another one


@dataclass(frozen=True)
class Made:
    """What came of it. `refused`: why there is nothing; then the rest says no more than is known."""

    refused: str = ""
    model: str = ""  # its class
    artefact: str = ""  # the file's name in `made`
    calls: int = 0  # that the program made of it, in all
    recorded: int = 0  # of which so many were kept, in the form that is exported
    others: Mapping[str, int] = field(default_factory=dict)  # calls of other models
    left: Mapping[str, int] = field(default_factory=dict)  # calls that the artefact has no answer for, by reason
    notes: Sequence[str] = ()
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of dimensions that may vary: those compared
    versions: Mapping[str, str] = field(default_factory=dict)


def made_in(folder: Path) -> Path:
    """Where the artefact and its runner are made."""
    return folder / "made"


def calls_in(folder: Path) -> Path:
    """Where recorded calls lie, a file each, with the program's answers and those in fp64."""
    return folder / "calls"


def write_order(folder: Path, order: Order) -> None:
    for place in (made_in(folder), calls_in(folder)):
        place.mkdir()
    (folder / _ORDER).write_text(json.dumps(to_json(order)))


def read_order(folder: Path) -> Order:
    return from_json(Order, json.loads((folder / _ORDER).read_text()))


def read_made(report: Mapping[str, Any]) -> Made:
    return from_json(Made, report)
