"""Tunes whose plan was proved sooner than there was time for: what had no time joins after all."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.registration import LOOKS
from overdrive.evidence.speed import Verdict
from overdrive.proof.statistical import StatisticalProof
from overdrive.tuner.findings import Findings
from overdrive.tuner.next_step import next_step
from tests.simulated import Names, Offer, Simulated, offer, searched
from tests.tuner.test_screened_tune import OURS, STIFF, Told

__all__ = ["offer"]  # a fixture

GAINS = {"low": 2.0, "fast": 1.5, "late": 1.1, "two": 1.08}
# Seconds: of 313 to 325 the plan and ten seeds take so much that "late" has no time any more.
BUDGET = 319.0
SHARED_OUT = 148.0  # of 136 to 156: a duel has its time where what three give together need not be measured
Tune = Callable[[float], tuple[Findings, Told]]


def seconds(names: Names) -> float:
    took = 0.02
    for name, gain in GAINS.items():
        took /= gain if name in names else 1.0
    return took


@pytest.fixture
def tuned(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Tunes of a program of which ten seeds have their time, and five tell."""
    late = {"contract": Contract.ROUNDING, "expected_saving": 0.05, **STIFF}
    low = {"contract": Contract.STATISTICAL, **OURS}
    offer(low=low, fast=OURS, idle=OURS, late=late, two={"expected_saving": 0.04, **STIFF})
    monkeypatch.setattr("overdrive.proof.runs.runs_at_once", lambda *_: 1)  # seconds add up, of those side by side too
    monkeypatch.setattr("overdrive.tuner.schedule._SEEDS_OF_A_PLAN", (LOOKS[2],))  # else seven where ten have no time
    result = lambda names: "other" if "low" in names else "same"  # noqa: E731
    Simulated(seconds, takes_time=True, result=result, start=3.0, paired=True).enter(monkeypatch)

    def tune(budget: float) -> tuple[Findings, Told]:
        told = Told()
        return searched(tmp_path, Contract.STATISTICAL, budget=budget, progress=told), told

    return tune


def test_what_had_no_time_joins_and_the_plan_is_proved_with_it(tuned: Tune) -> None:
    found, told = tuned(BUDGET)
    after = next(place for place, said in enumerate(told.outcomes) if "late may join after all" in said)
    assert any("the whole plan keeps statistical" in said for said in told.outcomes[:after])
    assert {each.name for each in found.adopted} == {"low", "fast", "two", "late"} and found.verdict is Verdict.FASTER
    assert found.proof is not None and found.proof.level is Contract.STATISTICAL
    assert "late" not in {each.name for each in found.rejected} and found.seconds <= BUDGET
    assert found.attribution is not None and {each.name for each in found.attribution.shares} >= {"low", "fast", "late"}


def test_where_the_plan_with_it_is_not_proved_what_was_proved_before_stays(
    tuned: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = StatisticalProof.compare
    plans: list[tuple[str, ...]] = []

    def refusing(self: StatisticalProof, old: TrialSpec, new: TrialSpec, *rest: float, **more: float) -> Check:
        plans.append(tuple(name for name, _ in new.techniques))
        return Check(None, "it learns less") if "late" in plans[-1] else compare(self, old, new, *rest, **more)

    monkeypatch.setattr(StatisticalProof, "compare", refusing)
    found, told = tuned(BUDGET)
    assert any("late may join after all" in said for said in told.outcomes) and "late" in plans[-1]
    assert len(plans) == len(set(plans)) == 2  # what was proved is not proved again
    assert {each.name for each in found.adopted} == {"low", "fast", "two"} and found.verdict is Verdict.FASTER
    assert found.proof is not None and found.proof.level is Contract.STATISTICAL and found.attribution is not None
    assert {each.name: each.reason for each in found.dropped}["late"].endswith("statistical: it learns less")


def test_what_is_proved_by_seeds_comes_before_what_that_proof_is_enough_for(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though that gains more for its time, with a proof of its own."""
    gains = {"low": 1.2, "mild": 1.3}
    offer(low={"contract": Contract.STATISTICAL, **OURS}, mild={"contract": Contract.ROUNDING, **OURS}, idle=OURS)
    took = lambda names: 0.02 / math.prod(gains[name] for name in gains if name in names)  # noqa: E731
    result = lambda names: "other" if "low" in names else "same"  # noqa: E731
    Simulated(took, takes_time=True, result=result, start=3.0, paired=True).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, budget=320.0)
    assert {each.name: each.joined for each in found.adopted} == {"low": None, "mild": Contract.ROUNDING}
    assert found.adopted[0].name == "low" and found.verdict is Verdict.FASTER
    assert found.proof is not None and found.proof.level is Contract.STATISTICAL


def test_time_that_was_kept_for_contributions_is_for_candidates_once_these_are_known(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of two were measured, of three they would have been: the tune ended with "1 more could be tried"."""
    offer(fast={"expected_saving": 0.4}, quick={"expected_saving": 0.3}, late={"expected_saving": 0.2})
    gains = {"fast": 1.5, "quick": 1.3, "late": 1.2}
    took = lambda names: 0.02 / math.prod(gains[name] for name in gains if name in names)  # noqa: E731
    Simulated(took, takes_time=True, start=3.0).enter(monkeypatch)
    told = Told()
    found = searched(tmp_path, budget=SHARED_OUT, progress=told)
    put_off = next(place for place, said in enumerate(told.outcomes) if "no time is left for a duel of late" in said)
    assert any("late may join after all" in said for said in told.outcomes[put_off:])
    assert {each.name for each in found.adopted} == {"fast", "quick", "late"} and found.confirmed
    assert found.seconds <= SHARED_OUT and not next_step(found)
