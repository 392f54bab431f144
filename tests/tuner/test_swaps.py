"""A swap: what cannot be in one plan with adopted techniques, and promises more than they gain, takes their place."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.json_data import from_json, to_json
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import TuneResult
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.proof.exact import ExactProof
from overdrive.report import words
from overdrive.report.html import page
from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, duels_of, gain_of, history, names_of, without
from overdrive.tuner.result import plan_of, result_of
from overdrive.tuner.strategies.worth import _hoped_beyond, beyond, gained_by
from tests.simulated import Names, Offer, Simulated, offer, searched

__all__ = ["offer"]  # a fixture


class Told(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def outcome(self, text: str) -> None:
        self.lines.append(text)


def program(gains: Mapping[str, float], **more: Any) -> Simulated:
    """Its step takes 10 ms, divided by the gain of each technique."""

    def seconds(names: Names) -> float:
        return 0.01 / math.prod(gains.get(name, 1.0) for name in names)

    return Simulated(seconds, facts=Facts(shares={"forward": 1.0}), **more)


def chosen(found: Findings) -> list[str]:
    return [each.name for each in found.chosen]


@pytest.mark.parametrize("inference", [False, True], ids=["training", "answering"])
def test_what_gains_more_takes_the_place_of_what_it_excludes(
    inference: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"programs": ("training", "inference")}
    offer(
        first={"expected_saving": 0.5, **both},
        beside={"expected_saving": 0.45, **both},
        engine={"expected_saving": 0.4, "conflicts": ("first",), "contract": Contract.ROUNDING, **both},
    )
    gains = {"first": 1.2, "beside": 1.3, "engine": 2.0}
    told = Told()
    program(gains, inference=inference, result=lambda names: str("engine" in names)).enter(monkeypatch)
    found = searched(tmp_path, progress=told)

    assert chosen(found) == ["beside", "engine"] and found.verdict is Verdict.FASTER and found.confirmed
    assert "engine in place of first, against plain + first + beside" in told.lines
    assert any(line.startswith("adopted in place of first: 1.6") for line in told.lines)
    (out,) = found.dropped
    assert out.name == "first" and out.reason.startswith("engine took its place: 1.6")
    assert found.proof is not None and found.proof.level is Contract.ROUNDING

    # All that led there counts: 1.2 by the first, 1.3 beside it, and what the engine has beyond the first.
    assert found.gain() == pytest.approx(2.6, rel=0.1)
    engine = next(each for each in found.adopted if each.name == "engine")
    assert engine.speedup is not None and engine.speedup.estimate == pytest.approx(2.0, rel=0.05)

    result = result_of(found, "x.toml")
    assert any(each.startswith("engine took the place of first: 1.6") for each in result.notes)
    assert [each.name for each in plan_of(found, result).techniques] == ["beside", "engine"]
    assert from_json(TuneResult, to_json(result)) == result
    assert len({duel.name for duel in result.duels if "first" in duel.name}) == 1, "its duel is told once"
    assert "engine took the place of first" in " ".join(words.sentences(result)) and "took its place" in page(result)


@pytest.mark.parametrize(("engine", "kept"), [(1.2, "first"), (1.02, "first"), (1.6, "engine")])
def test_what_was_adopted_stays_where_the_other_is_no_faster(
    engine: float, kept: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(first={"expected_saving": 0.5}, engine={"expected_saving": 0.4, "conflicts": ("first",)})
    program({"first": 1.3, "engine": engine}).enter(monkeypatch)
    found = searched(tmp_path)
    assert chosen(found) == [kept] and found.confirmed
    assert not any("took the place" in each for each in result_of(found, "x.toml").notes) or kept == "engine"


def test_what_gives_other_results_takes_no_place(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(first={"expected_saving": 0.5}, engine={"expected_saving": 0.4, "conflicts": ("first",)})
    program({"first": 1.2, "engine": 2.0}, result=lambda names: str("engine" in names)).enter(monkeypatch)
    found = searched(tmp_path)
    assert chosen(found) == ["first"] and found.confirmed and not found.dropped
    (out,) = (each for each in found.rejected if each.name == "engine")
    assert "not seen to keep its contract" in out.reason


def test_what_is_exact_is_compared_without_what_it_replaces_where_that_is_not(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its duel is against a plan with other bits, which says nothing of its own."""
    rounds = {"expected_saving": 0.5, "contract": Contract.ROUNDING}
    offer(rounds=rounds, beside={"expected_saving": 0.45}, same={"expected_saving": 0.4, "conflicts": ("rounds",)})
    gains = {"rounds": 1.2, "beside": 1.2, "same": 2.0}
    simulated = program(gains, result=lambda names: str("rounds" in names)).enter(monkeypatch)
    found = searched(tmp_path)
    assert chosen(found) == ["beside", "same"] and found.proof is not None
    assert found.proof.level is Contract.EXACT
    hashed = [set(dict(spec.techniques)) for spec in simulated.started if spec.digests == "bits"]
    assert {"beside"} in hashed and {"beside", "same"} in hashed


def test_several_give_their_place_to_one_that_promises_more_than_all_of_them(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {name: {"expected_saving": 0.5} for name in ("one", "two", "three")}
    offer(**parts, whole={"expected_saving": 0.45, "conflicts": ("one", "three")})
    program({"one": 1.15, "two": 1.2, "three": 1.15, "whole": 2.5}).enter(monkeypatch)
    found = searched(tmp_path)
    assert chosen(found) == ["two", "whole"] and {each.name for each in found.dropped} == {"one", "three"}
    said = [each for each in result_of(found, "x.toml").notes if "took the place" in each]
    assert said and said[0].startswith("whole took the place of one and three") and "with them" in said[0]


@pytest.mark.parametrize(("promise", "tried"), [(0.4, True), (0.1, False)])
def test_it_is_tried_only_where_it_promises_more_than_they_gain(
    promise: float, tried: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(first={"expected_saving": 0.5}, engine={"expected_saving": promise, "conflicts": ("first",)})
    simulated = program({"first": 1.4, "engine": 3.0}).enter(monkeypatch)
    found = searched(tmp_path)
    assert any("engine" in dict(spec.techniques) for spec in simulated.started) is tried
    assert chosen(found) == ["engine" if tried else "first"]
    if not tried:
        (told,) = (each for each in result_of(found, "x.toml").rejected if each.name == "engine")
        assert told.reason == "it cannot be in one plan with first"


def test_where_there_is_no_time_for_it_the_plan_is_as_it_was(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = {"expected_saving": 0.4, "conflicts": ("first",), "contract": Contract.ROUNDING, "usual_start": 200.0}
    offer(first={"expected_saving": 0.5}, engine=late)
    other = {"result": lambda names: str("engine" in names)}
    simulated = program({"first": 1.3, "engine": 2.0}, takes_time=True, **other).enter(monkeypatch)
    found = searched(tmp_path, budget=120.0)
    assert chosen(found) == ["first"] and found.confirmed and simulated.spent < 125.0
    (told,) = (each for each in found.rejected if each.name == "engine")
    assert told.reason.startswith("not tried")


@pytest.mark.parametrize("in_time", [True, False])
def test_what_lost_its_place_has_it_again_where_the_new_plan_is_not_proved(
    in_time: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(self: ExactProof, old: TrialSpec, new: TrialSpec) -> Check:
        if "engine" not in dict(new.techniques):
            return Check(Contract.EXACT, "the same")
        return Check(None, "other losses in step 90" if in_time else "broke off", late=not in_time)

    monkeypatch.setattr(ExactProof, "compare", compare)
    offer(
        first={"expected_saving": 0.5},
        beside={"expected_saving": 0.45},
        engine={"expected_saving": 0.4, "conflicts": ("first",)},
        last={"expected_saving": 0.1},
    )
    told = Told()
    program({"first": 1.2, "beside": 1.3, "engine": 2.0, "last": 1.2}).enter(monkeypatch)
    found = searched(tmp_path, progress=told)
    assert found.verdict is Verdict.FASTER and found.confirmed
    if not in_time:  # what its duels have shown stands
        assert (
            chosen(found) == ["beside", "engine", "last"]
            and "in the duels" in (found.proof or Check(None, "")).sentence
        )
        return
    assert chosen(found) == ["first", "beside", "last"]
    assert "back to what was there before engine" in told.lines
    (out,) = found.dropped
    assert out.name == "engine" and "other losses in step 90" in out.reason
    assert not any("took the place" in each for each in result_of(found, "x.toml").notes)


def test_where_the_plan_before_is_not_proved_either_the_rest_stays(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(self: ExactProof, old: TrialSpec, new: TrialSpec) -> Check:
        wrong = {"engine", "first"} & set(dict(new.techniques))
        return Check(None, "other losses in step 90") if wrong else Check(Contract.EXACT, "the same")

    monkeypatch.setattr(ExactProof, "compare", compare)
    offer(
        first={"expected_saving": 0.5},
        beside={"expected_saving": 0.45},
        engine={"expected_saving": 0.4, "conflicts": ("first",)},
    )
    program({"first": 1.2, "beside": 1.3, "engine": 2.0}).enter(monkeypatch)
    found = searched(tmp_path)
    assert chosen(found) == ["beside"] and found.confirmed
    assert sorted(each.name for each in found.dropped) == ["engine", "first"]
    assert all("other losses" in each.reason for each in found.dropped)


def test_what_needs_a_statistical_proof_gives_its_place_to_what_needs_none(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = {"expected_saving": 0.5, "contract": Contract.STATISTICAL}
    engine = {"expected_saving": 0.4, "conflicts": ("low",), "contract": Contract.ROUNDING}
    offer(low=low, joins={"expected_saving": 0.45}, engine=engine)
    gains = {"low": 1.2, "joins": 1.2, "engine": 2.5}
    other = {"result": lambda names: " ".join(sorted(names & {"low", "engine"}))}
    program(gains, **other).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert chosen(found) == ["joins", "engine"] and found.proof is not None
    assert found.proof.level is Contract.ROUNDING


def test_what_is_hoped_for_beyond_what_is_replaced_is_what_may_be_saved_on_average() -> None:
    """Speedups whose logarithm is exponential, drawn and averaged."""
    luck = random.Random(0)
    for usual, gained in ((0.4, 1.3), (0.2, 1.3), (0.6, 3.0)):
        mean = usual / (1 - usual)
        drawn = [math.exp(-luck.expovariate(1 / mean)) for _ in range(100_000)]
        assert 1 - statistics.fmean(drawn) == pytest.approx(usual, abs=0.01)
        saved = statistics.fmean(beyond(1 - took, gained) for took in drawn)
        assert _hoped_beyond(usual, gained) == pytest.approx(saved, abs=0.01)
    assert _hoped_beyond(0.4, 1.0) == 0.4 and _hoped_beyond(0.0, 1.0) == 0.0 and _hoped_beyond(0.9, math.inf) == 0.0


def test_what_the_program_needs_or_its_memory_keeps_its_place() -> None:
    spec = TrialSpec(Program("x.py"))
    plain = Adopted("one", {}, Duel(spec, spec, interval=Interval(1.1, 1.2, 1.3)), Check(Contract.EXACT, ""))
    assert gained_by([plain]) == 1.2 and gained_by([]) == 1.0
    assert beyond(0.5, 1.2) == pytest.approx(0.4) and beyond(0.1, 1.2) == 0.0
    for kept in ({"needed": True}, {"for_memory": True}, {"duel": Duel(spec, spec)}):
        assert beyond(0.9, gained_by([plain, replace(plain, name="two", **kept)])) == 0.0


def test_the_way_to_a_plan_has_each_duel_once_and_in_order() -> None:
    spec = TrialSpec(Program("x.py"))

    def joined(name: str, before: tuple[Adopted, ...] = ()) -> Adopted:
        return Adopted(
            name, {}, Duel(spec, spec, interval=Interval(1.1, 1.2, 1.3)), Check(Contract.EXACT, name), before=before
        )

    first, second = joined("first"), joined("second")
    third = joined("third", (first, second))
    fourth = joined("fourth", (second, third))
    plan = [third, fourth, joined("fifth")]
    assert names_of(history(plan)) == ("first", "second", "third", "fourth", "fifth")
    assert len(duels_of(plan)) == 5 and gain_of(plan) == pytest.approx(1.2**5)
    kept = without(["second"], [first, second, third])
    assert names_of(kept) == ("first", "third") and [each.check.pending for each in kept] == [False, True]
