"""Techniques switched by a row in a live trial: real processes, effects that are known. (15 s of CPU)"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import cast

import numpy as np
import pytest

from overdrive.core.program import Program
from overdrive.core.records import Block, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.screening import Design, estimate, on_off
from overdrive.trials import duel, screen, warming
from overdrive.trials.pool import TrialPool
from overdrive.trials.screen import ScreeningTrial, SwitchedTrial, failed
from tests.warm_trials import WarmPool

TRAIN = """
import sys, time
PAUSE = 0.006
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    time.sleep(PAUSE)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""
ALSO = "tests.trials.switched_techniques"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialPool]:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", root + ":" + str(Path(root) / "src"))
    monkeypatch.setattr(duel, "BLOCK_SECONDS", 0.03)
    monkeypatch.setattr(warming, "WARM_UP_SECONDS", 0.1)
    with WarmPool([ALSO]) as pool:
        yield pool


@pytest.fixture
def spec(script: Callable[[str], Path]) -> Callable[..., TrialSpec]:
    path = str(script(TRAIN))

    def make(*names: str, steps: int = 10**6) -> TrialSpec:
        return TrialSpec(Program(path, (str(steps),)), tuple((name, {}) for name in names))

    return make


def test_a_screening_tells_what_each_does(pool: TrialPool, spec: Callable[..., TrialSpec]) -> None:
    names = ["dawdles", "hastens"]
    design, rng = Design([*map(on_off, names), on_off("placebo", placebo=True)]), np.random.default_rng(0)
    trial = ScreeningTrial(pool, spec(*names), 0, time.monotonic(), lambda block: False)
    try:
        quickest = trial.warm_up(design.next_pair([*names, "placebo"], rng), design.factors)
        blocks = []
        for number in range(16):
            rows = design.next_pair([*names, "placebo"], rng)
            blocks += trial.pair(number, rows, design.factors)
    finally:
        trial.stop()
    assert trial.trial.group.exit_code() is not None
    effects = estimate(blocks, design.factors, noise=0.1)
    assert effects.pairs == 16 and not trial.left_out
    # A step is a pause of 2 or 6 ms, 4 ms more where it dawdles, and what it takes beside that.
    assert quickest < 0.1
    assert effects.speedup("dawdles").estimate < 1 / 1.2
    assert effects.speedup("hastens").estimate > 1.2
    placebo = effects.speedup("placebo", 0.999)
    assert placebo.low < 1 < placebo.high


def test_one_that_fails_to_switch_is_left_out_and_its_pair_dropped(
    pool: TrialPool, spec: Callable[..., TrialSpec]
) -> None:
    design, rng = Design([on_off("fails"), on_off("hastens")]), np.random.default_rng(1)
    trial = ScreeningTrial(pool, spec("fails", "hastens"), 0, disturbed=lambda block: False)
    try:
        trial.trial.first_step()
        pairs = [trial.pair(number, design.next_pair(["fails", "hastens"], rng), design.factors) for number in range(4)]
    finally:
        trial.stop()
    assert "no way back" in trial.left_out["fails"]
    dropped = [any(block.dropped for block in pair) for pair in pairs]
    assert sum(dropped) == 1 and not dropped[-1]


def test_what_is_on_is_told_and_what_is_disturbed(pool: TrialPool, spec: Callable[..., TrialSpec]) -> None:
    trial = SwitchedTrial(pool, spec("dawdles", "hastens"))
    try:
        trial.first_step()
        assert trial.switch(["hastens"]).on == ("hastens",)
        assert set(trial.switch(["hastens", "dawdles"]).on) == {"hastens", "dawdles"}
        assert trial.switch([]).on == ()
    finally:
        trial.stop()
    busy = iter([True, False])
    screening = ScreeningTrial(pool, spec("hastens"), 3, disturbed=lambda block: next(busy))
    try:
        screening.trial.first_step()
        blocks = screening.pair(7, [(1,), (0,)], [on_off("hastens")])
    finally:
        screening.stop()
    assert [(each.process, each.pair, each.disturbed) for each in blocks] == [(3, 7, True), (3, 7, False)]


def test_a_program_that_ends_is_no_failure(pool: TrialPool, spec: Callable[..., TrialSpec]) -> None:
    trial = ScreeningTrial(pool, spec("hastens", steps=20), 0)
    try:
        with pytest.raises(TrialOver) as over:
            trial.warm_up([(1,), (0,)], [on_off("hastens")])
            trial.pair(0, [(1,), (0,)], [on_off("hastens")])
    finally:
        trial.stop()
    assert failed(over.value) is None


class StandIn(SimpleNamespace):
    """For a trial; `block`: what these steps come to."""

    call_steps, left_out, step = 1, MappingProxyType({}), 0

    def switch(self, on: Collection[str]) -> None: ...

    def first_step(self, until: float) -> None:
        self.step = 1

    def run(self, steps: int, lead: int = 0) -> Block:
        begin = self.step + lead
        self.step = begin + steps
        return self.block(range(begin, self.step))


class Episodes(StandIn):
    """Stands in for a trial without batches, each of whose steps makes some calls of a model, of 10 ms each."""

    def block(self, made: range) -> Block:
        calls = sum(5 + 7 * number % 31 for number in made)
        return Block(self.step, len(made), 0.01 * calls, 0, training_calls=calls)


def test_blocks_without_batches_are_of_as_many_calls_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes are as long as they come: what is screened must not be taken for slow where these were long."""
    monkeypatch.setattr(screen, "SwitchedTrial", lambda pool, spec: Episodes(spec=spec))
    rows, factors = [(1,), (0,)], [on_off("any")]
    trial = ScreeningTrial(cast(TrialPool, None), TrialSpec(Program("train.py")), 0, disturbed=lambda block: False)
    trial.warm_up(rows, factors)
    for number in range(8):
        one, other = trial.pair(number, rows, factors)
        assert one.log_seconds == pytest.approx(other.log_seconds)


class Samples(StandIn):
    """Stands in for a trial of steps that take a tenth of a second, and have so many samples, over and over."""

    def block(self, made: range) -> Block:
        samples = sum(self.samples[number % len(self.samples)] for number in made)
        return Block(self.step, len(made), sum(map(self.seconds, made)), samples)

    def seconds(self, number: int) -> float:
        return 0.1 * (self.samples[number % len(self.samples)] / 64 if min(self.samples) else 1)


@pytest.mark.parametrize("samples", [(64, 0), (64, 0, 0, 0), (64, 0, 0), (0,), (64, 64, 64, 32)])
@pytest.mark.parametrize("block_seconds", [0.1, 0.7])
def test_blocks_are_as_long_as_they_are_whatever_batches_they_have(
    samples: tuple[int, ...], block_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several steps of one batch; no batches of a loader; an epoch's last batch of half the samples."""
    monkeypatch.setattr(duel, "BLOCK_SECONDS", block_seconds)
    monkeypatch.setattr(screen, "SwitchedTrial", lambda pool, spec: Samples(samples=samples, spec=spec))
    rows, factors = [(1,), (0,)], [on_off("any")]
    trial = ScreeningTrial(cast(TrialPool, None), TrialSpec(Program("train.py")), 0, disturbed=lambda block: False)
    trial.warm_up(rows, factors)
    pairs = [trial.pair(number, rows, factors) for number in range(8)]
    assert all(one.log_seconds == pytest.approx(other.log_seconds) for one, other in pairs)
    seconds = [math.exp(block.log_seconds) for pair in pairs for block in pair]
    assert all(0.05 < each < 0.11 for each in seconds), "a step, in all pairs alike"
