"""A plan under which a process of the program fails is not adopted, however late that is and however fast it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.core.records import Block, ExitReason, TrialOver
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
