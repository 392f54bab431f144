"""Trials of programs that are only numbers: whole searches in milliseconds, the same on every machine.

A `Simulated` says how long a step takes under which techniques, what it needs at its peak, what becomes of its
result and how it ends; `enter` puts such trials in the place of real ones. What a real trial does is tested with real
ones, in `tests/trials`; what is made of it, here.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.messages import Switched
from overdrive.core.metric import Metric
from overdrive.core.objective import TIME, Objective
from overdrive.core.program import Program
from overdrive.core.records import Block, ExitReason, StepRecord, Trace, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.techniques import catalogue as catalogue_module
from overdrive.techniques.technique import Technique
from overdrive.trials import factorial, interleaved, screen, sequential, untimed
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.pool import TrialPool
from overdrive.tuner import oom_recovery as oom_recovery
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.tune import tune

Names = frozenset[str]


@dataclass
class Simulated:
    """A program, as what its trials report. All that depends on techniques is a function of their names, and of
    "NAME VALUE" for each of their settings."""

    seconds: Callable[[Names], float] = lambda names: 0.01  # of a step
    peak: Callable[[Names], int] = lambda names: 0  # bytes
    result: Callable[[Names], str] = lambda names: ""  # equal ones are the same bit for bit
    error: Callable[[Names], float] = lambda names: 1e-7  # of a gradient, against fp64
    loss: Callable[[Names], float] = lambda names: 1.0  # what it comes down to
    rate: Callable[[Names], float] = lambda names: 0.1
    paired: bool = False  # seeds bring the same luck, whatever the result: five of them tell
    exit_reason: Callable[[Names], ExitReason | None] = lambda names: None  # before its first step
    left_out: Callable[[Names], Mapping[str, str]] = lambda names: {}
    jitter: float = 0.01  # of a block's time
    spread: float = 0.01  # between processes, each for all its life
    chance: int = 0  # another number, other noise
    memory: float = math.inf  # bytes of the machine, for all live trials together
    exclusive: bool = False  # its GPU takes one process only
    restless: bool = False  # no two runs are the same bit for bit, but with deterministic operations
    steps: int = 10**9
    facts: Facts = field(default_factory=lambda: Facts(shares={"forward": 0.5, "backward": 0.5}))
    start: float = 2.0  # seconds to the first step
    fp64: float = 1.0  # times as long as another step takes one that a reference run makes
    feeds_itself: bool = False  # the model is given what it made before
    hashed: float = 1.0  # and one that is written down in a digest log
    call: Callable[[Names], int] = lambda names: 1  # steps that are made in one call
    epoch: int = 0  # steps between two evaluations, each of which takes `evaluation` seconds; 0: there are none
    evaluation: float = 0.0
    taught: Callable[[Names], float] = lambda names: 1.0  # and one that a candidate makes
    inference: bool = False  # it trains nothing: its steps are calls of its model, of which outputs are replayed
    repeats: int = 0  # calls, after which its model is asked the same again; 0: never
    prints: Callable[[Names], str] = lambda names: ""  # by its end
    takes_time: bool = False  # whether starts and steps take their seconds of the clock, which stands still otherwise
    started: list[TrialSpec] = field(default_factory=list)  # all trials so far
    alive: list[_Trial] = field(default_factory=list)
    spent: float = 0.0  # seconds, by all trials

    def enter(self, patch: pytest.MonkeyPatch) -> Simulated:
        def trial(pool: TrialPool, spec: TrialSpec, launcher: Launcher | None = None) -> _Trial:
            self.started.append(spec)
            return _Trial(self, spec, len(self.started))

        for room in (sequential, untimed, factorial, oom_recovery, interleaved):
            patch.setattr(room, "Trial", trial)
        patch.setattr(screen, "SwitchedTrial", trial)
        patch.setattr("overdrive.tuner.neighbours.busy_share", lambda: 0.0)
        patch.setattr("overdrive.tuner.tune.starts_under", lambda *_: None)
        if self.takes_time:
            began = time.monotonic()
            patch.setattr(time, "monotonic", lambda: began + self.spent)
        return self


class _Trial:
    """What `trials.trial.Trial` is to those who use it."""

    def __init__(self, program: Simulated, spec: TrialSpec, number: int) -> None:
        self.spec = spec
        self.step = 0
        self.call_steps = 1
        self._names = frozenset(name for name, _ in spec.techniques)
        self._names |= {f"{name} {value}" for name, settings in spec.techniques for value in settings.values()}
        self._names |= {"one rank alone"} if spec.alone else set()
        self.left_out = dict(program.left_out(self._names))
        self._names -= self.left_out.keys()
        self._program = program
        self._chance = random.Random(1000 * program.chance + number)
        self._luck = math.exp(self._chance.gauss(0, program.spread))

    def first_step(self, until: float = math.inf) -> Block:
        program = self._program
        program.alive.append(self)
        program.spent += program.start
        if time.monotonic() > until:
            raise TrialOver(ExitReason("late", "the budget was used up"))
        if program.inference != (self.spec.clock == "inference"):
            raise TrialOver(ExitReason("answers" if program.inference else "trains", "so it was seen"))
        full = sum(program.peak(each._names) for each in program.alive) > program.memory
        exit_reason = ExitReason("oom", "out of memory") if full else program.exit_reason(self._names)
        if program.exclusive and len(program.alive) > 1:  # as a worker takes the error: tests/worker/test_failures.py
            exit_reason = ExitReason("busy", "CUDA error: CUDA-capable device(s) is/are busy or unavailable")
        if exit_reason:
            raise TrialOver(exit_reason, facts=program.facts)
        self.step = 1
        return Block(1, 1, program.start, 8, self._program.peak(self._names))

    def run(self, steps: int, lead: int = 0, profile: bool = False, until: float = math.inf) -> Block:
        left = self._program.steps - self.step
        if lead + steps > left:
            self.step = self._program.steps
            raise TrialOver(ExitReason("ended", f"after {self.step} steps"), self._trace())
        call = self._program.call(self._names)
        steps = -(-steps // call) * call
        self.call_steps = max(self.call_steps, call)
        before, self.step = self.step + lead, self.step + lead + steps
        luck = self._luck * math.exp(self._chance.gauss(0, self._program.jitter))
        seconds = steps * self._program.seconds(self._names) * luck
        if self.spec.replay is not None and "reference" in self.spec.replay.role:
            seconds *= self._program.fp64
        elif self.spec.replay is not None:
            seconds *= self._program.taught(self._names)
        elif self.spec.digests:
            seconds *= self._program.hashed
        if epoch := self._program.epoch:
            seconds += self._program.evaluation * (self.step // epoch - before // epoch)
        self._program.spent += seconds * (lead + steps) / steps
        return Block(self.step, steps, seconds, 8 * steps, self._program.peak(self._names))

    def switch(self, on: Collection[str]) -> Switched:
        known = catalogue_module.catalogue()
        stiff = [name for name, _ in self.spec.techniques if not known[name].switchable]
        self._names = frozenset({*stiff, *(each for each in on if each in known)} - self.left_out.keys())
        return Switched(tuple(on))

    def facts(self, costs: bool = False) -> Facts:
        return self._program.facts

    def trace(self) -> Trace:
        return self._trace()

    def output_tail(self, size: int = 0) -> str:
        return self._program.prints(self._names)

    def end(self) -> float | None:
        return 0.0

    def stop(self) -> None:
        self._program.alive = [each for each in self._program.alive if each is not self]

    def _made(self, result: str) -> float:
        """Checksum of what the model is given: data, or what it made itself."""
        made = f"{result} {self.spec.digests == 'perturbed'}" if self._program.feeds_itself else ""
        return float(zlib.crc32(made.encode()))

    def _trace(self) -> Trace:
        assert self.step < 100_000, "whole runs are ordered: give the program an end"
        result, program = self._program.result(self._names), self._program
        if program.restless and not self.spec.deterministic:
            result += f" {len(program.started)} {id(self)}"
        # Seeds part from each other by a hundredth; bits by less than can be seen in a loss.
        whose = "" if program.paired else result
        luck = random.Random(f"{self.spec.seed} {whose}").gauss(0, 0.01 if self.spec.seed else 0)
        slope = [math.exp(-step / 100) for step in range(self.step)]
        losses = [[program.loss(self._names) * (1 + luck) + height] for height in slope]
        if program.inference:
            losses = [[] for _ in slope]
        rate = program.rate(self._names)
        same = {
            "samples": 8,
            "calls": "training",
            "evaluation": (),
            "settings": str(rate),
            "inputs": ((self._made(result),),),
            "batches": "",
        }
        outcomes = ("parameters", "buffers", "optimizer_state", "random_states", "evaluation_results")
        entry = StepRecord(**same, **dict.fromkeys(outcomes, result))
        return Trace(
            inference=program.inference,
            call_sizes={"8 × 4": self.step} if program.inference else {},
            steps=self.step,
            losses=tuple(map(tuple, losses)),
            rates=(rate,) * self.step,
            samples=8 * self.step,
            state=result,
            digests=tuple(self._entry(entry, step) for step in range(self.step)) if self.spec.digests else (),
            replay=self._replay() if self.spec.replay else {},
            active=tuple(sorted(self._names)),
            left_out=self.left_out,
            rests=tuple(range(1, self.step + 1, self.call_steps)) if self.call_steps > 1 else (),
        )

    def _entry(self, usual: StepRecord, step: int) -> StepRecord:
        """What a digest log has of a step."""
        if not self._program.inference:
            return replace(usual, batches=str(step))
        asked = step % self._program.repeats if self._program.repeats else step
        return replace(usual, batches=str(asked), inputs=(*usual.inputs, (float(asked),)))

    def _replay(self) -> dict[str, Any]:
        role = self.spec.replay
        assert role is not None
        error = self._program.error(self._names)
        if role.role == "answers":
            return {"states": list(role.steps)}
        if role.role == "agreement":  # eight samples a call; so many are answered otherwise
            luck = random.Random(str(sorted(self._names)))
            told = [
                {"other": [float(luck.random() < error) for _ in range(8)], "error": [error**2] * 8} for _ in role.steps
            ]
            rows = [{"step": step, "tensor": "one", **each} for step, each in zip(role.steps, told, strict=True)]
            return {"states": list(role.steps), "rows": rows, "spreads": {"one": [1.0, 1.0]}}
        kinds = ("output",) if self._program.inference else ("gradient", "update")
        rows = [
            {"step": step, "kind": kind, "tensor": tensor, "error": error * luck, "size": 1.0, "count": 4000}
            for step in role.steps
            for kind, tensor in itertools.product(kinds, ("one", "other"))
            for luck in [random.Random(f"{step} {kind} {tensor} {sorted(self._names)}").uniform(0.9, 1.1)]
        ]
        return {"states": list(role.steps)} if role.role.endswith("reference") else {"rows": rows}


Offer = Callable[..., None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Brings techniques into the catalogue, by name with what they declare; they are exact and shorten `forward`,
    where nothing else is said."""
    module = ModuleType("tests.simulated_techniques")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def bring(**named: Mapping[str, Any]) -> None:
        for name, declared in named.items():
            usual = {"family": "host", "contract": Contract.EXACT, "targets": ("forward",)}
            setattr(
                module,
                name,
                type(name, (Technique,), {"__module__": module.__name__, "name": name, **usual, **declared}),
            )
        catalogue_module.also_in([module.__name__])

    yield bring
    catalogue_module._also.remove(module.__name__)
    catalogue_module.catalogue.cache_clear()


def target(folder: Path) -> Program:
    """What the trials are told to run: an empty script."""
    script = folder / "simulated.py"
    script.write_text("")
    os.utime(script, (0, 0))  # a program is another one when its file has another time
    return Program(str(script), (), False)


def searched(
    folder: Path,
    contract: Contract = Contract.ROUNDING,
    objective: Objective = TIME,
    budget: float | None = 3600.0,
    progress: Progress | None = None,
    metric: Metric | None = None,
    margin: float | None = None,
    ranks: int | None = None,
) -> Findings:
    """A whole tune of the program that was entered, all but what is written at the end."""
    program = target(folder)
    ledger = Ledger.open(folder / "ledger")
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(ledger, program, f"{contract} {objective}")
        only = frozenset(name for name, each in catalogue_module.catalogue().items() if "simulated" in each.__module__)
        request = TuneRequest(
            program, contract, budget, metric=metric, margin=margin, objective=objective, only=only, ranks=ranks
        )
        return tune(request, pool, checkpoint, progress or Progress())
