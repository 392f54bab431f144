"""A plan under which a process of the program fails is not adopted, however late that is and however fast it was.

Nor is what failed where it was to be proved.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.records import Block, ExitReason, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.speed import Verdict
from overdrive.tuner.duel_runner import Progress
from tests import simulated
from tests.simulated import Names, Offer, Simulated, offer, searched
from tests.tuner.test_search import names, paces, reasons

__all__ = ["offer"]  # a fixture

CRASH = ExitReason("crash", "SIGSEGV")


@pytest.mark.parametrize("steps", [130, 160])
def test_one_that_crashes_as_the_program_ends_is_left_out(
    steps: int, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the last step, such as a last evaluation or a save, is part of the program."""
    run = simulated._Trial.run

    def dies(trial: simulated._Trial, *order: int, **more: bool) -> Block:
        try:
            return run(trial, *order, **more)
        except TrialOver:
            if "fast" in trial._names:
                raise TrialOver(CRASH) from None
            raise

    monkeypatch.setattr(simulated._Trial, "run", dies)
    offer(fast={})
    Simulated(paces(fast=1.5), steps=steps).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == [] and "SIGSEGV" in reasons(found)["fast"]


class Stages(Progress):
    now = ""

    def stage(self, text: str) -> None:
        self.now = text


@pytest.mark.parametrize("pair", [1, 3, 4])
def test_a_plan_of_which_one_process_crashes_is_not_confirmed_by_the_others(
    pair: int, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, started = Stages(), []

    def crashes(on: Names) -> ExitReason | None:
        if not on or not progress.now.startswith("confirmation"):
            return None
        started.append(on)
        return CRASH if len(started) == pair else None

    offer(fast={})
    Simulated(paces(fast=1.5), exit_reason=crashes).enter(monkeypatch)
    found = searched(tmp_path, progress=progress)
    assert len(started) == pair, "no process after it"
    assert names(found) == [] and found.verdict is Verdict.INCONCLUSIVE
    assert any("SIGSEGV" in note for note in found.notes)


@pytest.mark.parametrize("level", [Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL])
def test_what_was_left_out_in_its_proof_is_not_proved_by_it(
    level: Contract, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the original was compared with itself."""
    begin = simulated._Trial.__init__

    def begins(trial: simulated._Trial, program: Simulated, spec: TrialSpec, number: int) -> None:
        begin(trial, program, spec, number)
        if (spec.digests == "bits" or spec.replay or spec.seed) and "fast" in trial._names:
            trial.left_out, trial._names = {"fast": "there is no memory for it"}, trial._names - {"fast"}

    monkeypatch.setattr(simulated._Trial, "__init__", begins)
    offer(fast={"contract": level})
    other = {} if level is Contract.EXACT else {"result": lambda on: "other" if on else ""}
    Simulated(paces(fast=1.5), **other).enter(monkeypatch)
    found = searched(tmp_path, level)
    assert names(found) == []
    told = [*found.rejected, *found.dropped]
    assert any("fast did not act in its proof: there is no memory for it" in each.reason for each in told)


def test_what_leaves_itself_out_beside_another_needs_no_proof_there(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(first={"expected_saving": 0.4}, second={})
    both = {"first": "nothing is left for it"}
    gains = paces(first=1.2, second=1.5)
    Simulated(gains, left_out=lambda on: both if {"first", "second"} <= on else {}).enter(monkeypatch)
    found = searched(tmp_path)
    assert "second" in names(found) and found.verdict is Verdict.FASTER


def test_a_program_that_fails_by_itself_after_a_while_is_told_so(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated._Trial.run

    def dies(trial: simulated._Trial, *order: int, **more: bool) -> Block:
        block = run(trial, *order, **more)
        if trial.step > 200:
            raise TrialOver(ExitReason("exception", "KeyError: 'epoch'"))
        return block

    monkeypatch.setattr(simulated._Trial, "run", dies)
    offer(fast={})
    Simulated(paces(fast=1.5)).enter(monkeypatch)
    assert any("failed by itself in the control (KeyError: 'epoch')" in note for note in searched(tmp_path).notes)
