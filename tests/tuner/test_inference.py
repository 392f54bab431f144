"""A tune of a program that trains nothing: found out by its trials, searched, proved and told by its calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.json_data import from_json, to_json
from overdrive.core.metric import Metric
from overdrive.core.objective import Objective
from overdrive.core.plan import Plan
from overdrive.core.records import ExitReason
from overdrive.core.tune_result import TuneResult
from overdrive.evidence.speed import Verdict
from overdrive.proof import whole_runs
from overdrive.report import figures, words
from overdrive.report.html import page
from overdrive.techniques.catalogue import catalogue
from overdrive.tuner.result import plan_of, result_of
from tests.simulated import Names, Offer, Simulated, offer, searched

__all__ = ["offer"]
SAVES = {"switchable": True, "programs": ("inference",), "contract": Contract.ROUNDING}
FACTS = Facts(inference=True, shares={"forward": 0.9, "data": 0.1})


def answering(seconds: dict[str, float], **more: Any) -> Simulated:
    def took(names: Names) -> float:
        return min([0.02, *(seconds[name] for name in names if name in seconds)])

    return Simulated(seconds=took, inference=True, facts=FACTS, **more)


def test_calls_that_were_seen_are_not_said_to_be_unseen(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a public Keras program five calls were told, and in the end: "no calls of a model were seen"."""
    offer(engine=SAVES)
    program = answering({}, exit_reason=lambda names: ExitReason("late", "its first call did not come"))
    program.enter(monkeypatch)
    found = searched(tmp_path)
    assert found.inference and found.refusal is not None
    assert found.refusal.startswith("The program is too slow to be measured: its first call did not come. With more")


def test_it_is_found_out_and_tuned_by_its_calls(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(engine=SAVES, trainers_only={"switchable": True})
    program = answering({"engine": 0.01, "trainers_only": 0.001}, result=lambda names: str("engine" in names))
    program.enter(monkeypatch)
    found = searched(tmp_path)
    assert found.inference and found.verdict is Verdict.FASTER
    assert [each.name for each in found.chosen] == ["engine"]
    assert program.started[0].clock == "training"
    assert {each.clock for each in program.started[2:]} == {"inference"}
    assert not any("trainers_only" in spec.name() for spec in program.started)
    assert found.proof is not None and "replayed calls" in found.proof.sentence

    result = result_of(found, "infer.overdrive.toml")
    plan = plan_of(found, result)
    assert plan.inference and Plan.loads(plan.dumps(), catalogue()).inference
    assert from_json(TuneResult, to_json(result)).inference
    assert words.sentence(result).startswith("Answers ")
    assert [each.given for each in result.call_sizes] == ["8 × 4"] and "Each call is given 8 × 4." in page(result)
    assert "time per call" in [name for name, _, _ in figures.before_after(result)]
    told = " ".join([words.sentence(result), *words.sentences(result)])
    assert "calls" in told and "train" not in told.lower() and " step" not in told
    html = page(result)
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", html, flags=re.S)
    assert not re.search(r".{0,30}\b(steps?|train(s|ing|ed)?|learns?)\b.{0,30}", text)
    assert "Does it still answer the same?" in html and "Where a call’s time goes" in html


def test_what_gives_other_answers_is_not_taken(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(engine=SAVES)
    wrong = answering(
        {"engine": 0.01},
        result=lambda names: str("engine" in names),
        error=lambda names: 1e-3 if "engine" in names else 1e-7,
    )
    wrong.enter(monkeypatch)
    found = searched(tmp_path)
    assert not found.chosen
    reasons = [each.reason for each in [*found.rejected, *found.dropped]]
    assert any("further from fp64" in reason for reason in reasons)


@pytest.mark.parametrize(("error", "taken"), [(0.003, True), (0.1, False)])
def test_at_statistical_answers_are_compared_sample_by_sample(
    error: float, taken: bool, offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(narrow={**SAVES, "contract": Contract.STATISTICAL})
    narrow = answering(
        {"narrow": 0.01},
        result=lambda names: str("narrow" in names),
        error=lambda names: error if "narrow" in names else 0.0,
    )
    narrow.enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert [each.name for each in found.chosen] == (["narrow"] if taken else [])
    if taken:
        assert found.proof is not None and found.proof.level is Contract.STATISTICAL
        assert found.proof.agreement is not None and "samples in" in found.proof.sentence
        told = result_of(found, "infer.overdrive.toml")
        assert from_json(TuneResult, to_json(told)).proof == told.proof
        assert "calls with the same inputs" in re.sub(r"<[^>]*>", " ", page(told))
    else:
        reasons = " ".join(each.reason for each in [*found.rejected, *found.dropped])
        assert "answered otherwise" in reasons


@pytest.mark.parametrize(("margin", "taken"), [(None, False), (0.2, True)])
def test_a_first_look_knows_the_share_that_was_asked_for(
    margin: float | None, taken: bool, offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(narrow={**SAVES, "contract": Contract.STATISTICAL})
    error = lambda names: 0.05 if "narrow" in names else 0.0  # noqa: E731
    answering({"narrow": 0.01}, result=lambda names: str("narrow" in names), error=error).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, margin=margin)
    assert [each.name for each in found.chosen] == (["narrow"] if taken else [])


@pytest.mark.parametrize(
    ("level", "its", "margin", "taken"),
    [
        (Contract.ROUNDING, "94.3", None, True),
        (Contract.ROUNDING, "93.8", None, False),
        (Contract.STATISTICAL, "94.3", None, True),
        (Contract.STATISTICAL, "97.9", None, False),
        (Contract.STATISTICAL, "94.3", 1.0, False),
        (Contract.STATISTICAL, "nan", None, False),
        (Contract.STATISTICAL, "", None, False),
    ],
)
def test_its_own_number_is_compared_after_whole_runs(
    level: Contract,
    its: str,
    margin: float | None,
    taken: bool,
    offer: Offer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    offer(engine={**SAVES, "contract": level})
    program = answering(
        {"engine": 0.01},
        result=lambda names: str("engine" in names),
        error=lambda names: 0.0,
        steps=9000,
        prints=lambda names: f"Accuracy: 12\nAccuracy: {its if 'engine' in names else '95.8'}\n",
    )
    program.enter(monkeypatch)
    found = searched(tmp_path, level, metric=Metric("accuracy"), margin=margin)
    assert [each.name for each in found.chosen] == (["engine"] if taken else [])
    if taken:
        assert found.proof is not None and found.proof.level is level and found.proof.metric is not None
        assert "accuracy after a whole run is 94.3 instead of 95.8, within 1.92 (2% of" in found.proof.sentence
        told = result_of(found, "infer.overdrive.toml")
        assert from_json(TuneResult, to_json(told)).proof == told.proof
        assert "accuracy after a whole run" in re.sub(r"<[^>]*>", " ", page(told))
    else:
        reasons = " ".join(each.reason for each in [*found.rejected, *found.dropped])
        assert "accuracy after a whole run is" in reasons and "which is more than" in reasons


def test_a_number_that_is_never_printed_is_said(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(engine=SAVES)
    answering({"engine": 0.01}, steps=9000).enter(monkeypatch)
    found = searched(tmp_path, metric=Metric("Recall"))
    assert not found.chosen and found.refusal_is_failure
    assert found.refusal == "The program never printed a number after 'Recall'."


def test_a_whole_run_that_is_too_long_for_the_budget_is_said_at_once(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(engine=SAVES)
    monkeypatch.setattr(whole_runs, "_SHARE", 0.0)
    program = answering({"engine": 0.01}, steps=9000).enter(monkeypatch)
    found = searched(tmp_path, metric=Metric("accuracy"))
    assert found.refusal is not None and "more than a third of the budget" in found.refusal
    assert not found.refusal_is_failure and not any(each.techniques for each in program.started)


def test_times_of_calls_are_no_aim_of_a_program_that_trains(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(helps={"switchable": True})
    Simulated(seconds=lambda names: 0.01).enter(monkeypatch)
    found = searched(tmp_path, objective=Objective.parse("latency"))
    assert found.refusal is not None and "this one trains" in found.refusal and not found.refusal_is_failure


def test_times_of_calls_are_what_trials_measure_where_they_are_the_aim(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(engine=SAVES)
    program = answering({"engine": 0.01}).enter(monkeypatch)
    found = searched(tmp_path, objective=Objective.parse("p99=20ms"))
    assert {each.timed for each in program.started[2:]} == {"call"}
    told = " ".join(result_of(found, "infer.overdrive.toml").notes)
    assert "without what the program does between two" in told and "99 of 100" in told


def test_training_programs_are_tuned_as_before(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(engine=SAVES, helps={"switchable": True})
    program = Simulated(seconds=lambda names: 0.01 if "helps" in names else 0.02).enter(monkeypatch)
    found = searched(tmp_path)
    assert not found.inference and [each.name for each in found.chosen] == ["helps"]
    assert {each.clock for each in program.started} == {"training"}
