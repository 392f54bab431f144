"""What is taken from the ledger in place of a duel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.duel import Duel, Rules
from overdrive.tuner import duel_runner
from overdrive.tuner.duel_runner import AGAIN, CANDIDATE, DuelRunner, Progress, confirmation


class Kept:
    """A checkpoint that knows what it was told before, by key."""

    def __init__(self) -> None:
        self.known: dict[str, Duel] = {}

    def duel(self, key: str, old: TrialSpec, new: TrialSpec) -> Duel | None:
        return self.known.get(key)

    def remember_duel(self, key: str, duel: Duel) -> None:
        self.known[key] = duel


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Rules, Duel]]:
    """The duels that are run from now on, of which none measures anything."""
    ran: list[tuple[Rules, Duel]] = []

    def run_duel(pool: Any, old: TrialSpec, new: TrialSpec, rules: Rules, *rest: Any, **more: Any) -> Duel:
        ran.append((rules, Duel(old, new)))
        return ran[-1][1]

    monkeypatch.setattr(duel_runner, "run_duel", run_duel)
    return ran


def test_a_candidate_s_duel_is_never_taken_for_the_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A technique whose duel has three pairs of processes, as `allocator`, is the whole plan."""
    plain, new = TrialSpec(Program("script.py")), TrialSpec(Program("script.py"), (("allocator", {}),))
    ran, kept = recorded(monkeypatch), Kept()
    for rules in (Rules(processes=3, most_processes=3), confirmation(3), confirmation(5), Rules(processes=3)):
        DuelRunner(None, kept, Progress()).run_duel(plain, new, rules, math.inf)  # type: ignore[arg-type]
    assert [rules.patient for rules, _ in ran] == [False, True]  # however many pairs it had: it is a confirmation
    # What seemed to gain nothing in the whole plan is measured anew: not by the duel, of as many pairs, that it won.
    for rules in (Rules(processes=2, most_processes=2), AGAIN):
        DuelRunner(None, kept, Progress()).run_duel(plain, new, rules, math.inf)  # type: ignore[arg-type]
    assert ran[-1][0] is AGAIN


def test_what_selected_a_plan_is_never_taken_for_its_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a tune was broken off: both have the rules of a confirmation, and were known by the same name."""
    plain, new = TrialSpec(Program("script.py")), TrialSpec(Program("script.py"), (("allocator", {}),))
    ran, kept = recorded(monkeypatch), Kept()
    selecting = replace(confirmation(3), selects=True)
    for rules in (selecting, replace(selecting, alpha=0.01), confirmation(3), selecting, confirmation(4)):
        DuelRunner(None, kept, Progress()).run_duel(plain, new, rules, math.inf)  # type: ignore[arg-type]
    assert [(rules.selects, rules.alpha) for rules, _ in ran] == [(True, 0.05), (True, 0.01), (False, 0.05)]


def test_a_second_chance_is_not_answered_by_the_first_duel(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a tune was broken off: both were known by the same name, so that none was given."""
    plain, new = TrialSpec(Program("script.py")), TrialSpec(Program("script.py"), (("autocast", {}),))
    ran, kept = recorded(monkeypatch), Kept()
    DuelRunner(None, kept, Progress()).run_duel(plain, new, CANDIDATE, math.inf)  # type: ignore[arg-type]
    for _ in range(2):  # gone on with, twice: each has both, in their order
        resumed = DuelRunner(None, kept, Progress())  # type: ignore[arg-type]
        found = [resumed.run_duel(plain, new, CANDIDATE, math.inf) for _ in range(2)]
        assert len(ran) == 2 and [id(each) for each in found] == [id(duel) for _, duel in ran]
