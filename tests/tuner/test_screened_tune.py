"""Whole tunes that begin with a screening, of a simulated program: what joins, how it was proved, when it stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.evidence.speed import Verdict
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.result import result_of
from tests.simulated import Names, Offer, Simulated, offer, searched

__all__ = ["offer"]  # a fixture

OURS = {"switchable": True}
STIFF = {"environment": lambda self, settings: {"ANY": "1"}}


class Told(Progress):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.outcomes: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def outcome(self, text: str) -> None:
        self.outcomes.append(text)


def seconds(names: Names) -> float:
    took = 0.01
    for name, gain in {"fast": 1.3, "faster": 1.5, "stiff": 1.2, "slow": 0.7}.items():
        took /= gain if name in names else 1.0
    return took


def test_what_gains_joins_in_one_duel_and_is_proved_once(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast=OURS, faster=OURS, slow=OURS, idle=OURS, stiff=STIFF)
    program = Simulated(seconds=seconds, takes_time=True).enter(monkeypatch)
    told = Told()
    found = searched(tmp_path, progress=told, budget=600.0)
    assert found.verdict is Verdict.FASTER
    assert {each.name for each in found.adopted} == {"fast", "faster", "stiff"}
    assert len({id(each.duel) for each in found.adopted}) == 1
    duels = [each for each in told.stages if " against plain" in each]
    assert len(duels) == 1 and "fast + faster" in duels[0]
    hashed = [each for each in program.started if each.digests]
    assert len({each.name() for each in hashed}) == 2  # the program and the plan, no part of it
    assert found.attribution is not None and found.attribution.method.startswith("screening")
    shares = {each.name: each.shapley for each in found.attribution.shares}
    assert shares["fast"].low < 1.3 < shares["fast"].high and shares["stiff"].low < 1.2 < shares["stiff"].high
    result = result_of(found, "plan.toml")
    assert {each.name for each in result.rejected if each.kind == "measured"} >= {"slow", "idle"}
    assert next(each for each in result.rejected if each.name == "slow").speedup is not None


def test_where_one_of_them_is_not_the_same_the_others_join(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast=OURS, faster=OURS, wrong=OURS, idle=OURS)
    Simulated(
        seconds=lambda names: seconds(names) / (1.4 if "wrong" in names else 1.0),
        result=lambda names: "other" if "wrong" in names else "same",
    ).enter(monkeypatch)
    told = Told()
    found = searched(tmp_path, Contract.EXACT, progress=told)
    assert found.verdict is Verdict.FASTER and {each.name for each in found.adopted} == {"fast", "faster"}
    assert any(each.startswith("not together") for each in told.outcomes)
    assert "wrong" in {each.name for each in found.rejected}


def test_what_no_time_is_left_to_confirm_is_told_as_such(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast=OURS, faster=OURS)
    Simulated(seconds=lambda names: 20 * seconds(names), start=10.0, takes_time=True, hashed=3.0, steps=10**6).enter(
        monkeypatch
    )
    found = searched(tmp_path, budget=240.0)
    assert found.verdict is Verdict.FASTER and found.standing is not None
    assert "not confirmed" in found.standing.basis


def test_a_tune_is_no_longer_than_the_runs_that_it_makes_faster(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast=OURS, faster=OURS, **{f"other{number}": {} for number in range(9)})
    Simulated(seconds=seconds, takes_time=True, steps=300, start=8.0).enter(monkeypatch)
    told = Told()
    found = searched(tmp_path, progress=told, budget=None)
    assert found.run_seconds() == pytest.approx(11.0, rel=0.2) and found.budget == pytest.approx(110.0, rel=0.2)
    assert any("--runs" in each for each in told.outcomes)
    assert found.verdict is Verdict.FASTER and found.seconds <= 160.0  # a process that was begun has its first step


def test_a_small_gain_that_a_duel_alone_does_not_establish_joins_with_its_screening(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(small=OURS, idle=OURS, lazy=OURS)
    Simulated(
        seconds=lambda names: 0.01 / (1.04 if "small" in names else 1.0), jitter=0.08, spread=0.005, takes_time=True
    ).enter(monkeypatch)
    told = Told()
    found = searched(tmp_path, progress=told, budget=600.0)
    assert {each.name for each in found.adopted} == {"small"}
    (small,) = found.adopted
    assert small.duel.interval is not None and small.duel.interval.low <= 1.01
    assert (
        small.share is not None and 1.01 < small.share.low < 1.04 < small.share.high and small.verdict is Verdict.FASTER
    )
    assert any("its screening together" in each for each in told.outcomes)


@pytest.mark.parametrize(("gain", "joins"), [(1.5, True), (1.2, False)])
def test_where_neighbours_disturbed_a_duel_the_screening_has_to_be_far_beyond_their_doing(
    gain: float, joins: bool, tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(much=OURS, idle=OURS)
    Simulated(seconds=lambda names: 0.01 / (gain if "much" in names else 1.0), jitter=0.02, takes_time=True).enter(
        monkeypatch
    )
    for place in ("trials.run_duel", "tuner.neighbours"):
        monkeypatch.setattr(f"overdrive.{place}.share_disturbed", lambda pairs: 0.8)
    found = searched(tmp_path, budget=600.0)
    assert ("much" in {each.name for each in found.adopted}) is joins
