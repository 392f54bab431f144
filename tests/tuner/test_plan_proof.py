"""Plans of several techniques that fail their proof as a whole: the culprit goes, the innocent stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.proof.exact import ExactProof
from overdrive.tuner.findings import Findings
from tests.simulated import Offer, Simulated, offer, searched
from tests.tuner.test_search import names, paces

__all__ = ["offer"]  # a fixture

FIVE = ("one", "two", "three", "four", "five")


@pytest.fixture
def tuned(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Findings, list[Any]]]:
    """A tune that adopts all five, where a proof of several against the untouched program fails for some sets."""

    def tune(*failing: set[str], in_time: int = 100) -> tuple[Findings, list[frozenset[str]]]:
        asked: list[frozenset[str]] = []

        def compare(self: ExactProof, old: TrialSpec, new: TrialSpec) -> Check:
            under = frozenset(dict(new.techniques))
            if old.techniques or len(under) == 1:  # in its duel, against the plan before it
                return Check(Contract.EXACT, "the same")
            asked.append(under)
            if len(asked) > in_time:
                return Check(None, "its proof broke off", late=True)
            wrong = any(each <= under for each in failing)
            return Check(None, f"other losses with {len(under)}") if wrong else Check(Contract.EXACT, "the same")

        monkeypatch.setattr(ExactProof, "compare", compare)
        offer(**{name: {"expected_saving": 0.3 - 0.05 * place} for place, name in enumerate(FIVE)})
        Simulated(paces(**dict.fromkeys(FIVE, 1.3))).enter(monkeypatch)
        return searched(tmp_path), asked

    return tune


def test_the_culprit_is_dropped_with_the_proof_that_says_so_and_the_innocent_stay(tuned: Any) -> None:
    found, asked = tuned({"three"})
    assert names(found) == ["one", "two", "four", "five"] and found.verdict is Verdict.FASTER and found.confirmed
    (out,) = found.dropped
    assert out.name == "three" and "other losses" in out.reason and out.check and out.check.level is None
    assert found.proof is not None and found.proof.level is Contract.EXACT
    assert len(asked) <= 5 and len(set(asked)) == len(asked)


def test_of_two_that_fail_together_one_goes(tuned: Any) -> None:
    found, _ = tuned({"two", "four"})
    assert names(found) == ["one", "two", "three", "five"] and [each.name for each in found.dropped] == ["four"]


@pytest.mark.parametrize("in_time", [1, 2, 3])
def test_what_is_proved_when_the_time_ends_is_kept(in_time: int, tuned: Any) -> None:
    found, asked = tuned({"four"}, in_time=in_time)
    proved = [each for each in asked[:in_time] if "four" not in each]
    kept = max(proved, key=len, default=frozenset())
    assert set(names(found)) == kept and found.confirmed is bool(kept)
    told = {each.name: each.reason for each in found.dropped}
    assert set(told) == set(FIVE) - set(names(found))
    assert any("no time left" in reason for reason in told.values())


def test_where_no_proof_comes_in_time_what_the_duels_said_stands(tuned: Any) -> None:
    found, _ = tuned(in_time=0)
    assert names(found) == list(FIVE) and found.proof is not None and found.proof.level is Contract.EXACT
    assert "in the duels" in found.proof.sentence and "no time was left" in found.proof.sentence
