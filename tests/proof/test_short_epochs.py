"""A proof sees two epochs of any program, however long they are, and puts up with one that does not bear it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, StepRecord, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.budget import ProofBudget, ends_of_epochs, short_epoch
from overdrive.proof.exact import ExactProof
from overdrive.proof.replays import events_in
from overdrive.proof.rounding import RoundingProof
from overdrive.proof.runs import ProofRuns
from overdrive.trials.pool import TrialPool
from overdrive.trials.untimed import UntimedRunner
from tests.warm_trials import WarmPool

PLAIN = TrialSpec(Program("train.py"))
TRAIN = LoaderFacts(batch_size=10, workers=0, map_style=True, length=10_000, seconds_per_batch=0.0)
TEST = replace(TRAIN, batch_size=100, length=1_000)
FACTS = Facts(step_seconds=0.5, samples_per_step=10.0, loaders=(TEST, TRAIN))


def test_epochs_are_cut_where_the_proof_would_not_see_two() -> None:
    assert short_epoch(FACTS, 100) == 48 * 10
    assert short_epoch(replace(FACTS, samples_per_step=40.0), 100) == 48 * 40  # four batches in a step
    assert short_epoch(replace(FACTS, loaders=(replace(TRAIN, length=700),)), 100) == 0
    assert short_epoch(replace(FACTS, loaders=(replace(TRAIN, length=None),)), 100) == 0
    assert short_epoch(FACTS, 60) == 0  # slow steps: no time for evaluations either
    assert short_epoch(replace(FACTS, framework="keras"), 100) == 0


def test_where_epochs_end_is_foretold_by_the_loaders() -> None:
    assert ends_of_epochs(FACTS, 480, 100) == (48, 49, 96, 97)
    assert ends_of_epochs(replace(FACTS, samples_per_step=40.0), 48 * 40, 100) == (48, 49, 96, 97)
    assert ends_of_epochs(replace(FACTS, loaders=(replace(TRAIN, length=395),)), 0, 100) == (40, 41, 80, 81)
    assert ends_of_epochs(FACTS, 0, 100) == ()  # not within so many steps
    assert ends_of_epochs(replace(FACTS, loaders=()), 0, 100) == ()


TRAINS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

loss = torch.nn.functional.mse_loss
torch.manual_seed(0)
data = TensorDataset(torch.randn(9_995, 4), torch.randn(9_995, 1))
test = TensorDataset(torch.randn(5_000, 4), torch.randn(5_000, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for epoch in range(5):
    model.train()
    for rows, targets in DataLoader(data, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss(model(rows), targets).backward()
        optimizer.step()
    schedule.step()
    model.eval()
    with torch.no_grad():
        print(sum(loss(model(rows), targets) for rows, targets in DataLoader(test, 100)))
"""


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    with WarmPool() as pool:
        yield pool


class Runs:
    """Trials of a program with so many epochs, which may mind that they are cut."""

    def __init__(self, epochs: int = 9, minds: bool = False) -> None:
        self.cuts: list[int] = []
        self._epochs, self._minds = epochs, minds

    def run(self, spec: TrialSpec, steps: int) -> Trace | ExitReason:
        self.cuts.append(spec.epoch)
        if spec.epoch and (self._minds or spec.techniques):
            return ExitReason("exception", "AssertionError: 480 samples of 10000")
        made = min(steps, self._epochs * (spec.epoch or 10_000) // 10)
        return Trace(steps=made, losses=((1.0,),) * made, digests=(StepRecord(parameters="0"),) * made)

    def known(self, name: str, make: Any) -> Any:
        return make()


def proved(runs: Runs, new: TrialSpec = PLAIN) -> Any:
    return ExactProof(ProofRuns(runs, FACTS, lambda stage: None, False, ProofBudget())).compare(PLAIN, new)  # type: ignore[arg-type]


def test_a_program_that_counts_its_samples_is_compared_with_whole_epochs() -> None:
    runs = Runs(minds=True)
    assert proved(runs).level is not None and runs.cuts == [480, 0, 0]


def test_of_a_program_of_one_epoch_that_is_cut_as_late_as_it_can_be() -> None:
    runs = Runs(epochs=1)
    assert proved(runs).level is not None and runs.cuts == [480, 960, 960]


def test_what_fails_in_short_epochs_where_the_program_does_not_is_no_proof() -> None:
    runs = Runs()
    check = proved(runs, replace(PLAIN, techniques=(("prefetch", {}),)))
    assert check.level is None and "480 samples" in check.sentence and runs.cuts == [480, 480]


def test_two_evaluations_and_their_ragged_batches_lie_in_a_log_of_a_hundred_steps(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    written = script(TRAINS)
    untimed = UntimedRunner(pool)
    trace = untimed.run(TrialSpec(Program(str(written)), digests="bits", epoch=480), 100)
    assert isinstance(trace, Trace)
    evaluated = [step for step, each in enumerate(trace.digests, 1) if each.evaluation]
    ragged = [step for step, each in enumerate(trace.digests, 1) if each.samples != trace.digests[0].samples]
    assert (evaluated, ragged) == ([49, 97], [48, 49, 96, 97])  # what an evaluation fetches counts to the step after it
    assert {48, 49, 96, 97} <= set(events_in(trace.digests))
    whole = untimed.run(TrialSpec(Program(str(written)), digests="bits"), 100)
    assert isinstance(whole, Trace) and whole.digests[:47] == trace.digests[:47]


class Replays(Runs):
    """A program of slow steps, whose states can be saved in epochs of any length, or in whole ones alone."""

    def run(self, spec: TrialSpec, steps: int) -> Trace | ExitReason:
        trace = super().run(spec, steps)
        if isinstance(trace, ExitReason) or spec.replay is None:
            return trace
        row = {"kind": "gradient", "tensor": "weight", "error": 1e-7, "size": 1.0, "count": 10}
        rows = [{**row, "step": step} for step in spec.replay.steps]
        return replace(trace, replay={"states": list(spec.replay.steps), "rows": rows})


@pytest.mark.parametrize(("minds", "cut"), [(False, {480}), (True, {480, 0})])
def test_a_state_replay_settles_whether_epochs_are_cut(minds: bool, cut: set[int], tmp_path: Path) -> None:
    runs = Replays(minds=minds)
    untimed: Any = runs
    runs.pool, runs.given_up = SimpleNamespace(scratch=tmp_path), {}  # type: ignore[attr-defined]
    runs.forget = lambda word: None  # type: ignore[attr-defined]
    shared = ProofRuns(untimed, FACTS, lambda stage: None, False, ProofBudget())
    assert RoundingProof(shared).compare(PLAIN, PLAIN).level is not None
    assert set(runs.cuts) == cut and runs.cuts[-1] == min(cut) and not shared.may_not_bear_cuts


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, SystemExit])
def test_who_is_stopped_waits_for_no_trial(stopped: type[BaseException]) -> None:
    """Trials are in sessions of their own, and hear no Ctrl-C: the end of the pool is theirs."""
    untimed: Any = SimpleNamespace()
    shared = ProofRuns(untimed, FACTS, lambda stage: None, False, ProofBudget())
    shared.at_once = 2
    begun, over, ended = threading.Event(), threading.Event(), list[int]()

    def run(number: int, threads: int) -> None:
        if number:
            begun.set()
            over.wait(5)
            ended.append(number)
        else:
            begun.wait(5)
            raise stopped

    try:
        with pytest.raises(stopped):
            shared.side_by_side(run, (0, 1))
        assert begun.is_set() and not ended
    finally:
        over.set()
