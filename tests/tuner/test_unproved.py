"""What had no time to be tried and proved is measured in the time that is left over, and is in no plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.tuner.findings import Findings
from overdrive.tuner.next_step import next_step
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.strategies.worth import Worth
from tests.simulated import Names, Offer, Simulated, offer, searched

__all__ = ["offer"]  # a fixture

COMPILES = {"expected_saving": 0.3, "contract": Contract.ROUNDING, "usual_start": 20.0}


def program(monkeypatch: pytest.MonkeyPatch, gain: float, **more: object) -> Simulated:
    """Of 0.5 s a step: no proof at `rounding` ends in time."""

    def seconds(names: Names) -> float:
        return 0.5 / (gain if "compiles" in names else 1.0)

    def result(names: Names) -> str:
        return "other bits" if "compiles" in names else ""

    facts = Facts(shares={"forward": 1.0}, step_seconds=0.5)
    usual = {"start": 5.0, "takes_time": True, "facts": facts, "result": result}
    return Simulated(seconds, **{**usual, **more}).enter(monkeypatch)  # type: ignore[arg-type]


def told(found: Findings) -> tuple[str, str]:
    (each,) = (each for each in found.rejected if each.name == "compiles")
    return each.kind, each.reason


@pytest.mark.parametrize("gain", [1.5, 0.5])
def test_it_is_known_whether_a_longer_tune_is_worth_it(
    gain: float, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(compiles=COMPILES)
    made = program(monkeypatch, gain)
    found = searched(tmp_path, budget=120.0)
    kind, reason = told(found)
    assert not found.chosen and made.spent < 125.0
    if gain > 1:
        assert kind == "time" and reason.startswith("1.5") and "no time was left to prove it" in reason
        assert "compiles was measured at 1.5" in next_step(found) and "--budget 5m" in next_step(found)
    else:
        assert kind == "measured" and reason.startswith("slower: 0.5")
        assert "There is nothing to gain at rounding: 1 candidate was measured" in next_step(found)


def test_it_takes_no_time_that_is_not_there(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(compiles={**COMPILES, "usual_start": 100.0})
    made = program(monkeypatch, 1.5)
    kind, reason = told(searched(tmp_path, budget=120.0))
    assert kind == "time" and reason.startswith("not tried")
    assert not any(spec.techniques for spec in made.started)


def test_a_tune_that_is_to_pay_for_itself_measures_nothing_for_knowledge_alone(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(compiles=COMPILES)
    made = program(monkeypatch, 1.5, steps=100_000)
    monkeypatch.setattr(TuneRequest, "most_seconds", lambda self: 120.0)
    kind, _ = told(searched(tmp_path, budget=None))
    assert kind == "time" and not any(spec.techniques for spec in made.started)


def test_beside_a_plan_it_is_measured_against_that(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(compiles=COMPILES, caches={"expected_saving": 0.4})
    made = program(monkeypatch, 1.5)
    plain = made.seconds
    made.seconds = lambda names: plain(names) / (2.0 if "caches" in names else 1.0)
    monkeypatch.setattr(Worth, "in_time", lambda self, each: "compiles" not in each.names)
    found = searched(tmp_path, budget=400.0)
    assert [each.name for each in found.chosen] == ["caches"]
    (each,) = (each for each in found.rejected if each.name == "compiles")
    assert each.kind == "time" and each.duel is not None and each.speedup is not None
    assert each.duel.old.techniques == (("caches", {}),)
    seen = f"compiles was measured at {each.speedup.as_speedup()}"
    assert f"1 more could be tried in a longer tune ({seen}" in next_step(found)
    assert replace(each, duel=None).speedup is None  # it is known by that alone
