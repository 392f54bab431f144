"""Data sets that change late, between epochs or in the middle of one: under each technique the program gets what it
gets without, from the first batch on that is another one."""

from __future__ import annotations

import functools
import json
import math
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from overdrive.worker.session import Session  # noqa: E402
from tests.conftest import long_but  # noqa: E402

COUNT = 64
LEVEL = 0
OPTIONS = {"level": 0, "other": 1}
SETTINGS = SimpleNamespace(level=0)
PLANS: dict[str, dict[str, Any]] = {
    "sample_cache": {"sample_cache": {"memory_share": 0.5}},
    "prefix_cache": {"prefix_cache": {"memory_share": 0.5}},
    "both and prefetch": {
        "sample_cache": {"memory_share": 0.5},
        "prefix_cache": {"memory_share": 0.5},
        "prefetch": {"depth": 2},
    },
    "loader_workers": {"loader_workers": {"workers": 2, "persistent": True}},
}


class Slotted:
    __slots__ = ("level",)

    def __init__(self) -> None:
        self.level = 0


class Data(Dataset[Any]):
    """Reads a level from somewhere; what samples hold of it tells when it was read."""

    SHIFT = 0

    def __init__(self, read: Callable[[Any, int], int], state: Any) -> None:
        self.read = read
        self.state = state

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)) * 2, self.read(self, index) + self.SHIFT


def option(name: str) -> int:
    return int(os.environ.get(name, "0"))


def level() -> int:
    return LEVEL


def set_global(data: Data, value: int) -> None:
    global LEVEL
    LEVEL = value


def rewritten(data: Data, value: int) -> None:
    Path("new.json").write_text(json.dumps(value))
    os.replace("new.json", data.state)


def in_place(data: Data, value: int) -> None:
    Path(data.state).write_text(json.dumps(value))


def swapped(data: Data, value: int) -> None:
    data.state[[3, 40]] = data.state[[40, 3]]


# What a data set holds, how a fetch reads it, how the program changes it.
STATES: dict[str, tuple[Callable[[], Any], Callable[[Any, int], int], Callable[[Any, int], object]]] = {
    "attribute": (lambda: 0, lambda d, i: d.state, lambda d, v: setattr(d, "state", v)),
    "list of dicts": (
        lambda: [{"label": 0} for _ in range(COUNT)],
        lambda d, i: d.state[i]["label"],
        lambda d, v: d.state[40].update(label=v),
    ),
    "deep": (
        lambda: {"a": [{"b": [{"c": [{"d": 0}]}]}]},
        lambda d, i: d.state["a"][0]["b"][0]["c"][0]["d"],
        lambda d, v: d.state["a"][0]["b"][0]["c"][0].update(d=v),
    ),
    "order of a dict": (
        lambda: {"a": 1, "b": 2},
        lambda d, i: next(iter(d.state.values())),
        lambda d, v: d.state.update(a=d.state.pop("a")),
    ),
    "order of an ordered dict": (
        lambda: OrderedDict(a=1, b=2),
        lambda d, i: next(iter(d.state.values())),
        lambda d, v: d.state.move_to_end("a"),
    ),
    "one and true": (lambda: [1], lambda d, i: int(d.state[0] is True), lambda d, v: d.state.__setitem__(0, True)),
    "minus zero": (
        lambda: [0.0],
        lambda d, i: int(math.copysign(1, d.state[0])),
        lambda d, v: d.state.__setitem__(0, -0.0),
    ),
    "slots": (Slotted, lambda d, i: d.state.level, lambda d, v: setattr(d.state, "level", v)),
    "deque": (lambda: deque([0], maxlen=3), lambda d, i: d.state[-1], lambda d, v: d.state.append(v)),
    "set": (set, lambda d, i: int(i in d.state), lambda d, v: d.state.add(40)),
    "view of a dict": (
        lambda: (base := {"level": 0}, MappingProxyType(base)),
        lambda d, i: d.state[1]["level"],
        lambda d, v: d.state[0].update(level=v),
    ),
    "partial": (
        lambda: functools.partial(OPTIONS.get, "level"),
        lambda d, i: d.state(),
        lambda d, v: OPTIONS.update(level=v),
    ),
    "array": (lambda: np.zeros(COUNT, np.int64), lambda d, i: int(d.state[i]), lambda d, v: d.state.fill(v)),
    "rows swapped": (lambda: np.arange(COUNT), lambda d, i: int(d.state[i]), swapped),
    "large array": (
        lambda: np.zeros((COUNT, 1 << 16), np.int32),
        lambda d, i: int(d.state[i, 7]),
        lambda d, v: d.state[40].fill(v),
    ),
    "tensor's memory": (
        lambda: torch.zeros(COUNT, dtype=torch.int64),
        lambda d, i: int(d.state[i]),
        lambda d, v: d.state.data.numpy().fill(v),
    ),
    "class": (lambda: None, lambda d, i: 0, lambda d, v: setattr(type(d), "SHIFT", v)),
    "another class": (
        lambda: None,
        lambda d, i: 0,
        lambda d, v: setattr(d, "__class__", type("Other", (Data,), {"SHIFT": v})),
    ),
    "global": (lambda: None, lambda d, i: LEVEL, set_global),
    "global by way of a function": (lambda: None, lambda d, i: level(), set_global),
    "global's attribute": (lambda: None, lambda d, i: SETTINGS.level, lambda d, v: setattr(SETTINGS, "level", v)),
    "environment": (lambda: None, lambda d, i: option("OF_A_TEST"), lambda d, v: os.environ.update(OF_A_TEST=str(v))),
    "a library's function": (lambda: None, lambda d, i: math.floor(0.5), lambda d, v: replaced(v)),
    "file": (lambda: "level.json", lambda d, i: json.loads(Path(d.state).read_text()), in_place),
    "file put in its place": (lambda: "level.json", lambda d, i: json.loads(Path(d.state).read_text()), rewritten),
    "folder": (
        lambda: None,
        lambda d, i: Path.cwd().name.count("x" * 40),
        lambda d, v: (os.mkdir("x" * 40), os.chdir("x" * 40)),
    ),
}
_floor = math.floor


def replaced(value: int) -> None:
    math.floor = lambda number: value  # type: ignore[assignment, misc]


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_A_TEST", "0")
    Path("level.json").write_text("0")
    yield
    _back()


def _back() -> None:
    global LEVEL
    LEVEL, Data.SHIFT, math.floor = 0, 0, _floor  # type: ignore[misc]
    OPTIONS["level"] = SETTINGS.level = 0
    os.environ["OF_A_TEST"] = "0"


def trained(state: str, moment: tuple[int, int], plan: dict[str, dict[str, Any]]) -> tuple[list[Any], dict[str, str]]:
    make, read, change = STATES[state]
    data = Data(read, make())
    torch.manual_seed(0)
    batches = []
    with Session(list(plan.items())) as session:
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for epoch in range(4):
            if moment == (epoch, -1):
                change(data, 3)
            for number, (pictures, labels) in enumerate(loader):
                batches.append((pictures.sum().item(), labels.tolist()))
                if moment == (epoch, number):
                    change(data, 3)
        left_out = dict(session.seams.left_out)
    return batches, left_out


# Of each way to see a change one; in an epoch, where a change is seen late most easily, all are changed.
BETWEEN = ("attribute", "order of a dict", "large array", "tensor's memory", "class", "global", "environment", "file")


@pytest.mark.parametrize(
    ("state", "moment"),
    long_but(
        [*((state, (2, 2)) for state in STATES), *((state, (2, -1)) for state in BETWEEN)],
        [(state, moment) for state in STATES for moment in ((2, 2), (2, -1))],
    ),
)
def test_the_program_gets_what_it_gets_without(state: str, moment: tuple[int, int], tmp_path: Path) -> None:
    before = tmp_path / "plainly"
    before.mkdir()
    os.chdir(before)
    Path("level.json").write_text("0")
    expected, _ = trained(state, moment, {})
    assert len({str(each) for _, labels in expected for each in labels}) > 1  # the change shows
    for plan, techniques in PLANS.items():
        place = tmp_path / plan
        place.mkdir()
        os.chdir(place)
        Path("level.json").write_text("0")
        _back()
        assert trained(state, moment, techniques)[0] == expected, plan


class Scored(Dataset[Any]):
    """One of its samples has a gradient, where gradients are recorded."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.score = torch.nn.Linear(1, 1)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        sample = torch.full((4,), float(index))
        return sample * self.score(torch.ones(1)) if index == 41 else sample


@pytest.mark.parametrize("first", [False, True])
def test_a_gradient_is_there_in_the_mode_that_a_batch_is_asked_for_in(first: bool) -> None:
    def seen(plan: dict[str, dict[str, Any]]) -> list[Any]:
        torch.manual_seed(0)
        with Session(list(plan.items())):
            loader = DataLoader(Scored(), batch_size=8, shuffle=True)
            found = []
            for mode in (first, first, not first, first):
                with torch.set_grad_enabled(mode):
                    found += [(batch.sum().item(), batch.requires_grad) for batch in loader]
        return found

    expected = seen({})
    assert {gradient for _, gradient in expected} == {False, True}
    for plan, techniques in PLANS.items():
        assert seen(techniques) == expected, plan


@pytest.mark.parametrize("state", ["attribute", "list of dicts", "large array", "rows swapped", "global"])
@pytest.mark.parametrize("plan", PLANS)
def test_what_does_not_change_is_served_to_the_end(plan: str, state: str) -> None:
    expected, _ = trained(state, (9, 9), {})
    got, left_out = trained(state, (9, 9), PLANS[plan])
    assert got == expected
    assert not left_out.keys() - {"prefix_cache", "prefetch"}, left_out  # which have nothing to do here


class Printed(Dataset[Any]):
    """How long a tensor is when it is printed; no code of its own names what that depends on."""

    number = torch.tensor([1 / 3])

    def __init__(self) -> None:
        self.level = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), 0.5 * index), len(str(self.number)) + self.level


class PrintedLater(Printed):
    """Comes to that only when it has changed."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if self.level else (torch.full((4,), 0.5 * index), 0)


class WiderNumbers(Printed):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([0.5 * index] * 4), self.level


def digits(count: int) -> Callable[[Printed], None]:
    return lambda data: torch.set_printoptions(precision=count)


@pytest.mark.parametrize(
    ("make", "anew", "changes"),
    [
        # After a first change workers hold another copy, with which a second one is to be seen as well.
        (Printed, False, {1: digits(6), 2: digits(8)}),
        (PrintedLater, False, {1: lambda data: setattr(data, "level", 5), 2: digits(8)}),
        # An equal data set is made for each epoch, which holds nothing of what changes.
        (Printed, True, {2: digits(8)}),
        (WiderNumbers, True, {2: lambda data: torch.set_default_dtype(torch.float64)}),
    ],
)
def test_a_library_told_otherwise_between_epochs_is_seen(
    make: type[Printed], anew: bool, changes: dict[int, Callable[[Printed], None]]
) -> None:
    def seen(plan: dict[str, dict[str, Any]]) -> list[Any]:
        torch.manual_seed(0)
        data, found = make(), []
        loader = DataLoader(data, batch_size=8, shuffle=True)
        try:
            with Session(list(plan.items())):
                for epoch in range(4):
                    changes.get(epoch, lambda data: None)(data)
                    if anew:
                        loader = DataLoader(make(), batch_size=8, shuffle=True)
                    found += [(batch.sum().item(), batch.dtype, labels.tolist()) for batch, labels in loader]
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_printoptions(profile="default")
        return found

    expected = seen({})
    assert len({(kind, str(labels)) for _, kind, labels in expected}) > 1  # the change shows
    for plan, techniques in PLANS.items():
        assert seen(techniques) == expected, plan
