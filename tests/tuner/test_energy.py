"""The energy of a step with and without a plan, by counters that a test has made."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from overdrive.core.program import Program
from overdrive.core.records import Block, ExitReason, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.machine.energy import Counted, EnergyMeter
from overdrive.trials.pool import TrialPool
from overdrive.tuner import energy
from overdrive.tuner.energy import energy_of
from tests.conftest import IMPORT_TORCH

OLD, NEW = TrialSpec(Program("train.py")), TrialSpec(Program("train.py"), (("allocator", {}),))


now = [0.0]  # of the simulated trials


class Watts(EnergyMeter):
    """10 W at all times, by this clock."""

    clock = staticmethod(lambda: now[0])

    def __init__(self, parts: tuple[str, ...] = ("a part",)) -> None:
        self.parts, self._zones, self._child = parts, [], None

    def read(self) -> Counted:
        return {"a part": 10 * self.clock()}


class Simulated:
    """A trial whose steps take 2 ms, and with techniques 1 ms."""

    length = 10_000
    start = 0.0  # seconds
    starts: ClassVar[list[float]] = []

    def __init__(self, pool: object, spec: TrialSpec) -> None:
        self._pace = 0.001 if spec.techniques else 0.002
        self.step, self.call_steps = 0, 1

    def first_step(self, until: float) -> None:
        now[0] += self.start
        if now[0] > until:
            raise TrialOver(ExitReason("late", ""))
        self.step = 1
        self.starts.append(now[0])

    def run(self, steps: int, until: float) -> Block:
        self.step += steps
        if self.step > self.length:
            raise TrialOver(ExitReason("ended", ""))
        now[0] += steps * self._pace
        return Block(self.step, steps, steps * self._pace, steps)

    def stop(self) -> None:
        pass


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> type[Simulated]:
    monkeypatch.setattr(energy, "Trial", Simulated)
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Simulated, "length", 10_000)
    monkeypatch.setattr(Simulated, "start", 0.0)
    Simulated.starts.clear()
    return Simulated


def test_each_side_is_charged_with_its_own(simulated: type[Simulated]) -> None:
    found = energy_of(None, OLD, NEW, Watts())  # type: ignore[arg-type]
    assert found is not None and found.of == "a part"
    assert found.before == pytest.approx(0.02) and found.after == pytest.approx(0.01)  # 10 W for 2 ms, for 1 ms


def test_a_program_of_known_length_is_never_run_over_its_end(
    simulated: type[Simulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(simulated, "length", 50)
    assert energy_of(None, OLD, NEW, Watts(), length=50) is not None  # type: ignore[arg-type]
    assert energy_of(None, OLD, NEW, Watts()) is None  # type: ignore[arg-type]  # it ends on the way
    monkeypatch.setattr(energy, "_LEAST_SECONDS", 60.0)
    assert energy_of(None, OLD, NEW, Watts(), length=50) is None  # type: ignore[arg-type]  # too little to be told


def test_without_a_counter_no_process_is_started() -> None:
    assert energy_of(None, OLD, NEW, Watts(parts=())) is None  # type: ignore[arg-type]


def test_nothing_is_measured_of_steps_that_take_longer_than_a_stretch() -> None:
    """Four processes would warm up, for three steps each, after the budget is used up."""
    assert energy_of(None, OLD, NEW, Watts(), step_seconds=2.5) is None  # type: ignore[arg-type]  # no process is started


def test_nothing_is_measured_of_processes_that_take_minutes_to_start(
    simulated: type[Simulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is used up by then: four compilations of half a minute came after it."""
    monkeypatch.setattr(simulated, "start", 5.0)
    assert energy_of(None, OLD, NEW, Watts()) is not None and len(simulated.starts) == 4  # type: ignore[arg-type]
    for start, made in ((30.0, 1), (100.0, 0)):
        simulated.starts.clear()
        monkeypatch.setattr(simulated, "start", start)
        assert energy_of(None, OLD, NEW, Watts()) is None and len(simulated.starts) == made  # type: ignore[arg-type]


@pytest.mark.long
def test_of_real_processes(script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(
        f"{IMPORT_TORCH}\nimport time\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(400):\n    time.sleep(0.01)\n    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(Watts, "clock", staticmethod(time.monotonic))
    with TrialPool() as pool:
        found = energy_of(pool, TrialSpec(Program("train.py")), TrialSpec(Program("train.py")), Watts(), length=400)
    assert found is not None and found.before and found.before > 0.1 and found.after and found.after > 0.1
