"""What a model's calls can reach of Python's: any change is seen, and can be put back."""

from __future__ import annotations

import collections
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.model_state import trial_call
from overdrive.model_state.reach import Reach
from overdrive.model_state.state import State
from overdrive.model_state.trial_call import NoTrial, tried

SETTINGS: dict[str, Any] = {"scale": 1.0}
SCALE = 1.0


class Config:
    __slots__ = ("width",)

    def __init__(self) -> None:
        self.width = 3


class Net(nn.Module):
    shared: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.seen: list[float] = []
        self.table = {"a": [1, 2]}
        self.recent = collections.deque([1], maxlen=2)
        self.names = {"x"}
        self.config = Config()
        self.array = np.zeros(3)
        self.torch_generator = torch.Generator().manual_seed(1)
        self.numpy_generator = np.random.default_rng(1)
        self.python_generator = random.Random(1)
        factor = 2.0

        def scaled(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        def change() -> None:
            nonlocal factor
            factor = 3.0

        self.scaled, self.change = scaled, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(self.fc(self.norm(x))) * SETTINGS["scale"] * SCALE + len(self.shared)

    def save(self) -> None:
        """No forward calls it."""
        print(open("somewhere").read(), time.time())  # noqa: SIM115


class Other(Net):
    pass


def sets_global(model: Net) -> None:
    global SCALE
    SCALE = 2.0


CHANGES: dict[str, Callable[[Net], Any]] = {
    "attribute": lambda model: setattr(model, "late", 1),
    "mode": lambda model: model.eval(),
    "hook": lambda model: model.fc.register_forward_hook(lambda *_: None),
    "hook of all": lambda model: nn.modules.module.register_module_forward_hook(lambda *_: None),
    "module": lambda model: setattr(model, "fc", nn.Linear(4, 4)),
    "forward": lambda model: setattr(model.fc, "forward", lambda x: x),
    "class": lambda model: setattr(model, "__class__", Other),
    "attribute of the class": lambda model: setattr(Net, "forward", Net.save),
    "list": lambda model: model.seen.append(0.0),
    "list of the class": lambda model: model.shared.append(1),
    "list in a dict": lambda model: model.table["a"].append(3),
    "dict": lambda model: model.table.update(b=1),
    "deque": lambda model: model.recent.append(2),
    "set": lambda model: model.names.add("y"),
    "slot": lambda model: setattr(model.config, "width", 5),
    "array": lambda model: model.array.__setitem__(0, 1.0),
    "closure": lambda model: model.change(),
    "entry of a global": lambda model: SETTINGS.update(scale=2.0),
    "global": sets_global,
    "torch generator": lambda model: torch.rand(1, generator=model.torch_generator),
    "numpy generator": lambda model: model.numpy_generator.random(),
    "python generator": lambda model: model.python_generator.random(),
    "parameter": lambda model: setattr(model.fc, "weight", nn.Parameter(torch.ones(4, 4))),
}


@pytest.mark.parametrize("how", CHANGES)
def test_any_change_is_seen_and_put_back(how: str) -> None:
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(6, 4)
    state = State([model])
    assert not state.changed() and not state.reach.hidden and not state.reach.outward and not state.reach.prints
    expected = model(x)
    assert not state.changed()
    CHANGES[how](model)
    assert state.changed() and state.change()
    with state.as_it_was():
        assert not state.changed()
        CHANGES[how](model)
    assert state.changed()
    state.put_back()
    assert not state.changed() and torch.equal(model(x), expected)


def test_a_number_that_is_set_to_an_equal_number_is_no_change() -> None:
    model = Net()
    model.late = 12345.5  # type: ignore[assignment]
    state = State([model])
    model.late = float("12345.5")  # type: ignore[assignment]
    assert not state.changed()


def reads_a_file(x: Any) -> Any:
    return x if x is not None else open("somewhere")


def asks_the_clock(x: Any) -> Any:
    return x * time.time()


def prints(x: Any) -> Any:
    print(x)
    return x


def ends(x: Any) -> Any:
    if x is None:
        sys.exit(f"nothing is no batch, nor is {sys.maxsize}")
    return x


def looks_for_a_module(x: Any) -> Any:
    return x * len(sys.modules)


DOES = [(reads_a_file, "open()"), (asks_the_clock, "time"), (prints, ""), (ends, ""), (looks_for_a_module, "sys")]


@pytest.mark.parametrize(("function", "what"), DOES)
def test_what_the_code_may_do_besides_computing(function: Any, what: str) -> None:
    model = Net()
    model.scaled = function
    reach = Reach([model])
    assert what in reach.outward and bool(reach.outward) == bool(what) and reach.prints == (function is prints)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_named_tuples_hide_nothing() -> None:
    model = Net()
    model.scaled = lambda x: Pair(x, x).left
    assert Reach([model]).hidden == ""


def test_functions_of_torch_in_cpp_hide_nothing() -> None:
    model = Net()
    model.scaled = torch._C._get_tracing_state
    assert Reach([model]).hidden == ""


@pytest.mark.parametrize("kind", [object, threading.Lock, threading.RLock])
def test_marks_and_locks_hide_nothing(kind: Any) -> None:
    model = Net()
    model.mark = kind()
    assert Reach([model]).hidden == ""


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_weights_that_hooks_of_pytorch_make_in_each_call_are_no_change(norm: Any) -> None:
    model = norm(torch.nn.Linear(3, 2))
    state = State([model])
    model(torch.ones(4, 3))
    assert not state.changed()
    model.kept = model.weight
    assert "'kept' of a Linear" in state.change()


@pytest.mark.parametrize("thing", [sys.__stderr__, iter([1]), (each for each in "x"), np.zeros(1 << 20)])
def test_what_has_a_state_that_cannot_be_seen_is_told(thing: Any) -> None:
    model = Net()
    model.thing = thing
    assert Reach([model]).hidden


class Effects(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")
        self.seen.append(1.0)
        self.table["n"] = len(self.seen)
        SETTINGS["calls"] = SETTINGS.get("calls", 0) + 1
        torch.rand(1, generator=self.torch_generator)
        return super().forward(x) * (1 + random.random() + float(torch.rand(1)))


@pytest.mark.parametrize("forked", [True, False])
def test_a_trial_call_leaves_no_trace(
    forked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial_call, "may_fork_with", lambda model: forked)
    SETTINGS.pop("calls", None)
    model, x = Effects(), torch.randn(6, 4)
    state, chance, own = State([model]), (torch.get_rng_state(), random.getstate()), model.torch_generator.get_state()
    buffers = [each.clone() for each in model.buffers()]
    outcome = tried(model, lambda: list(model(x).shape))
    assert outcome.made == [6, 4] and outcome.effect and "norm.running_mean" in outcome.buffers
    assert not state.changed() and model.seen == [] and "calls" not in SETTINGS
    assert torch.equal(torch.get_rng_state(), chance[0]) and random.getstate() == chance[1]
    assert torch.equal(model.torch_generator.get_state(), own)
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), buffers, strict=True))
    assert capsys.readouterr().out == ""


class Writing(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with open("trace.txt", "a") as file:
            file.write("called")
        return super().forward(x)


@pytest.mark.parametrize("forked", [True, False])
def test_a_trial_call_writes_no_file(forked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(trial_call, "may_fork_with", lambda model: forked)
    monkeypatch.chdir(tmp_path)
    model = Writing()
    with pytest.raises(NoTrial, match=r"file|open"):
        tried(model, lambda: list(model(torch.randn(6, 4)).shape))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("forked", [True, False])
def test_a_trial_call_in_which_the_code_ends_the_program_is_none(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model does of which half a batch is asked."""
    monkeypatch.setattr(trial_call, "may_fork_with", lambda model: forked)
    model = Net()
    model.scaled = ends
    with pytest.raises(NoTrial, match="SystemExit: nothing is no batch"):
        tried(model, lambda: model.scaled(None))


def test_a_number_set_to_an_equal_one_is_looked_into_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(2, 2)
    module.rate = float("0.3")
    state = State([module])
    looks: list[int] = []
    change = state.change
    monkeypatch.setattr(state, "change", lambda: looks.append(1) or change())
    module.rate = float("0.3")
    assert not state.changed() and not state.changed() and len(looks) == 1
    module.rate = 0.5
    assert state.changed() and state.changed()
    for _ in range(6):  # again and again
        module.rate = float("0.3")
        assert not state.changed()
    module.rate = 0.5
    assert state.changed()


class Frozen(list):  # type: ignore[type-arg]
    """As pandas has one, the names of an index."""

    def __iadd__(self, other: Any) -> Frozen:  # type: ignore[misc]
        raise TypeError("no sum")

    def __radd__(self, other: Any) -> Frozen:
        return Frozen([*other, *self])


def test_a_list_of_the_programs_own_kind_adds_nothing_itself() -> None:
    inner = [2]
    assert any(each is inner for each in Reach([Frozen([1, inner])]).containers)
