"""Whole rounds come back, whatever ends one of the trials, and nothing is left running. (30 s of CPU)"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from overdrive.core.program import Program
from overdrive.core.records import Block
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials import duel, factorial, warming
from overdrive.trials.factorial import FactorialTooLarge, _paces, measure
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from tests.conftest import IMPORT_TORCH
from tests.warm_trials import WarmPool, warm_trials

# A step takes 5 ms or more: with the times of the fixture below, it is warm after 24 steps at most and its
# pace known after 24 more, and a block has 10 at most.
TRAIN = """
import sys, time
IMPORT_TORCH
steps, pause, fault = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    if step == fault:
        raise ValueError("bad batch")
    time.sleep(pause)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
""".replace("IMPORT_TORCH", IMPORT_TORCH)
ENDLESS = 10**6
LATER = math.inf

Make = Callable[..., TrialSpec]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "WARM_UP_SECONDS", 0.1)
    monkeypatch.setattr(duel, "BLOCK_SECONDS", 0.05)


@pytest.fixture
def spec(script: Callable[[str], Path]) -> Make:
    """Makes a trial spec of a program of `steps` steps, `pause` seconds each, that raises at step `fault`."""
    path = str(script(TRAIN))

    def make(steps: int = ENDLESS, pause: float = 0.005, fault: int = -1) -> TrialSpec:
        return TrialSpec(Program(path, (str(steps), str(pause), str(fault))))

    return make


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    with WarmPool() as pool:
        yield pool
        assert not warm_trials().alive()


def test_in_every_round_each_makes_the_same_steps(pool: TrialPool, spec: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, blocks = Trial.run, []

    def noting(self: Trial, steps: int, profile: bool = False) -> Block:
        block = run(self, steps, profile)
        blocks.append((self.spec, block.step))
        return block

    monkeypatch.setattr(Trial, "run", noting)
    specs, told = [spec(), spec(pause=0.02), spec(fault=-2)], []
    seconds = measure(pool, specs, 5, LATER, told.append)
    assert told == [1, 2, 3, 4, 5] and [len(row) for row in seconds] == [5, 5, 5]
    # A sleep is never shorter than asked for: the rows belong to their orders, and are of one step.
    assert all(pace >= 0.02 for pace in seconds[1]) and all(pace >= 0.005 for row in seconds for pace in row)
    rounds = [blocks[-15:][start : start + 3] for start in range(0, 15, 3)]
    assert all({spec for spec, _ in each} == set(specs) for each in rounds)
    assert all(len({step for _, step in each}) == 1 for each in rounds)  # at the same place of the program
    assert len({tuple(specs.index(spec) for spec, _ in each) for each in rounds}) > 1  # in changing order
    assert rounds[-1][0][1] > rounds[0][0][1]


def test_a_program_that_is_over_leaves_the_rounds_before(
    pool: TrialPool, spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factorial, "available_memory", lambda: 0)  # cannot be found out: no reason to refuse
    seconds = measure(pool, [spec(), spec(steps=120)], 50, LATER)
    assert 1 <= len(seconds[0]) == len(seconds[1]) < 50


def test_blocks_are_made_to_fit_a_program_of_known_length(pool: TrialPool, spec: Make) -> None:
    seconds = measure(pool, [spec(steps=120)], 20, LATER, total_steps=120)
    assert len(seconds[0]) == 20


def test_one_that_fails_does_not_lose_what_was_measured(pool: TrialPool, spec: Make) -> None:
    seconds = measure(pool, [spec(), spec(fault=80)], 50, LATER)
    assert 1 <= len(seconds[0]) == len(seconds[1]) < 50
    assert "bad batch" in pool.last_output


def test_one_that_cannot_start_leaves_nothing_to_compare(pool: TrialPool, spec: Make) -> None:
    assert measure(pool, [spec(), spec(fault=0)], 5, LATER) == [[], []]


def test_what_does_not_fit_into_memory_is_refused(pool: TrialPool, spec: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factorial, "available_memory", lambda: 2**20)
    with pytest.raises(FactorialTooLarge, match=r"4 trials of .* do not fit into memory at once: 1 are running"):
        measure(pool, [spec()] * 4, 5, LATER)


def test_an_interrupt_ends_all_trials(pool: TrialPool, spec: Make) -> None:
    def interrupt(done: int) -> None:
        assert len(warm_trials().alive()) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(pool, [spec()], 5, LATER, interrupt)


def test_the_deadline_ends_it_between_rounds(pool: TrialPool, spec: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    deadline = time.monotonic() + 1000
    monkeypatch.setattr(
        factorial, "time", SimpleNamespace(monotonic=lambda: deadline + 1 if len(told) == 2 else time.monotonic())
    )
    assert len(measure(pool, [spec()], 50, deadline, told.append)[0]) == 2


def test_past_the_deadline_no_other_is_started(pool: TrialPool, spec: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[TrialSpec] = []

    def start(pool: TrialPool, spec: TrialSpec) -> Trial:
        started.append(spec)
        return Trial(pool, spec)

    monkeypatch.setattr(factorial, "Trial", start)
    specs = [spec(pause=10.0), spec()]
    assert measure(pool, specs, 5, time.monotonic()) == [[], []]
    assert started == specs[:1]


def test_all_are_told_in_one_unit() -> None:
    """Of a block without samples (several steps of one batch) only seconds a step are known."""
    some, none = Block(10, 4, 2.0, 8.0, 0), Block(10, 4, 2.0, 0.0, 0)
    assert _paces([[some, some]], by_sample=True) == [[0.25], [0.25]]
    assert _paces([[some, none]], by_sample=True) == [[0.5], [0.5]]
    assert _paces([[some, some]], by_sample=False) == [[0.5], [0.5]]


def test_steps_without_batches_are_of_as_many_calls_of_a_model() -> None:
    """Seconds a step of the round's usual one: here of 3 calls, of 0.25 s each."""
    short, long = Block(10, 4, 2.0, 0, training_calls=8), Block(10, 4, 4.0, 0, training_calls=16)
    assert _paces([[short, long]], by_sample=False) == [[0.75], [0.75]]
    uncounted = Block(10, 4, 4.0, 0)
    assert _paces([[short, uncounted]], by_sample=False) == [[0.5], [1.0]]
