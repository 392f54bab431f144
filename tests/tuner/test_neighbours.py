"""What is said of other programs on the machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.neighbours import share_disturbed
from overdrive.evidence.speed import Pair, Verdict
from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.neighbours import disturbed, least_believed, untold
from overdrive.tuner.reasons import no_faster
from tests.simulated import Offer, Simulated, offer, searched

__all__ = ["offer"]  # a fixture

SPEC = TrialSpec(Program("script.py"))


def duel(quiet: int, loud: int, used: float = 0.0) -> Duel:
    calm = [Pair(0, 10, 1.0, 1.0, True, (0.0, 0.0), (used, used))] * quiet
    return Duel(SPEC, SPEC, calm + [Pair(0, 10, 1.0, 1.0, True, (0.0, 0.4), (1.0, 1.0))] * loud)


def test_the_share_that_was_left_out_is_told() -> None:
    assert disturbed(duel(40, 0)) == []
    (told,) = disturbed(duel(30, 10))
    assert told.startswith("25% of the pairs of blocks of the confirmation were left out")
    told = disturbed(duel(9, 31))
    assert "In 78% of the pairs of blocks of the confirmation others held the cores, so that all count" in told[0]
    assert told[1] == "Tune when the machine is quieter." and len(duel(9, 31).kept()) == 40


def test_a_host_that_has_cores_share_one_is_told() -> None:
    crowded = [Pair(0, 10, 1.0, 1.0, True, (0.0, 0.0), (0.0, 0.0), (1.0, 1.7))]
    of_host, left_out = disturbed(Duel(SPEC, SPEC, duel(30, 0).pairs + crowded * 10))
    assert "In 25% of the pairs of blocks" in of_host and "its host" in of_host
    assert left_out.startswith("25% of the pairs of blocks of the confirmation were left out")
    assert len(disturbed(Duel(SPEC, SPEC, duel(39, 0).pairs + crowded))) == 1


def test_programs_that_use_the_machine_all_the_while_are_told() -> None:
    cores = os.cpu_count() or 1
    (told,) = disturbed(duel(40, 0, 0.5 * cores))
    assert "50% of all cores" in told and disturbed(duel(40, 0, 0.1 * cores)) == []


def test_where_nobody_tells_it_is_said_once_and_only_of_what_was_measured() -> None:
    assert untold(duel(10, 0)) == [] == untold(Duel(SPEC, SPEC))
    assert len(untold(Duel(SPEC, SPEC, [Pair(0, 10, 1.0, 1.0, True)] * 10))) == 1


def test_what_is_measured_beside_others_has_to_exceed_what_they_may_do() -> None:
    """Of public llama2.c at a load of 10 `allocator` was told as 6.59x [1.39, 31.28]; the program differed from itself
    by more than that."""
    cores = float(os.cpu_count() or 1)
    assert least_believed(duel(40, 0), 1.5) == 0.0 == least_believed(duel(30, 10), 1.5)  # those left out do not count
    assert least_believed(duel(9, 31), 0.1) == 1.33 and least_believed(duel(9, 31), 1.5) == 2.5
    waits = [Pair(0, 10, 1.0, 1.0, True, (0.9, 0.9), (0.9 * cores, 0.9 * cores))] * 40  # as if it were used to it
    assert share_disturbed(waits) == 0 and least_believed(Duel(SPEC, SPEC, waits), 1.5) == 2.5
    free = [replace(each, waited=(0.0, 0.0)) for each in waits]  # there are cores enough
    assert least_believed(Duel(SPEC, SPEC, free), 1.5) == 0.0


@pytest.mark.parametrize(("gain", "joins"), [(1.5, False), (6.0, True)])
def test_beside_others_nothing_joins_that_the_program_may_gain_by_itself(
    gain: float, joins: bool, tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(much={"expected_saving": 0.3})
    Simulated(seconds=lambda names: 0.01 / (gain if "much" in names else 1.0), jitter=0.02).enter(monkeypatch)
    monkeypatch.setattr("overdrive.tuner.neighbours._all_the_while", lambda pairs: 0.9)
    monkeypatch.setattr("overdrive.tuner.findings.noise_floor", lambda pairs: 1.5)
    found = searched(tmp_path)
    assert ("much" in {each.name for each in found.adopted}) is joins
    assert found.verdict is (Verdict.FASTER if joins else Verdict.INCONCLUSIVE)
    assert joins or "may have made a gain of 2.50x" in found.rejected[0].reason


def test_a_candidate_is_left_out_with_that_reason() -> None:
    assert "others held the cores in 78% of its pairs" in (no_faster(duel(9, 31)) or "")
    assert Duel(SPEC, SPEC).verdict is Verdict.INCONCLUSIVE


def test_who_uses_the_machine_is_said_before_anything_is_measured(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Progress):
        said: ClassVar[list[str]] = []

        def stage(self, text: str) -> None:
            self.said.append(text)

        outcome = stage

    offer(idle={})
    Simulated().enter(monkeypatch)
    monkeypatch.setattr("overdrive.tuner.neighbours.busy_share", lambda: 0.9)
    found = searched(tmp_path, progress=Told())
    assert Told.said[0].startswith("Other programs were using 90% of the cores") and Told.said[0] in found.notes
