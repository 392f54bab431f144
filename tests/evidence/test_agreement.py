"""Answers to the same inputs: how many may be other ones, and how far off, before that is another program."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from overdrive.evidence.agreement import judge
from overdrive.evidence.binomial import samples_needed


def replay(
    samples: int,
    other: float = 0.0,
    error: float = 0.005,
    seed: int = 1,
    classes: int = 0,
    lost: int | None = None,
) -> dict[str, Any]:
    """Calls of ten samples. `error`: in standard deviations; `lost`: a class all of whose samples are others."""
    chance = random.Random(seed)
    rows = []
    for step in range(1, samples // 10 + 1):
        kinds = [chance.randrange(classes) for _ in range(10)] if classes else []
        others = [float(chance.random() < other or (kinds[place : place + 1] == [lost])) for place in range(10)]
        errors = [(error * chance.lognormvariate(0, 0.5)) ** 2 * 4.0 for _ in range(10)]
        row = {"step": step, "tensor": "scores", "form": True, "finite": True, "other": others, "error": errors}
        rows.append({**row, "classes": kinds} if classes else row)
    return {"rows": rows, "spreads": {"scores": [2.0, 3.0]}, "repeated": [], "other_inputs": []}


def test_lower_precision_passes_and_its_figures_are_told() -> None:
    agreed = judge(replay(1500, other=0.005))
    assert agreed.holds is True
    assert agreed.record and agreed.record.samples == 1500 and agreed.record.calls == 150
    assert agreed.record.other_at_most is not None and agreed.record.other_at_most < 0.02
    assert "2 % are allowed" in agreed.sentence


def test_at_the_margin_less_than_one_in_twenty_pass() -> None:
    passed = sum(judge(replay(1000, other=0.02, seed=seed)).holds is True for seed in range(120))
    assert passed <= 10  # 5 % of 120, and two standard deviations


def test_half_the_margin_mostly_passes_with_as_many_samples_as_are_asked_for() -> None:
    needed = samples_needed(0.02, 0.01)
    assert 400 < needed <= 1500
    passed = sum(judge(replay(1500, other=0.01, seed=seed)).holds is True for seed in range(60))
    assert passed >= 0.85 * 60


def test_few_samples_establish_nothing_and_say_how_many_would() -> None:
    agreed = judge(replay(100))
    assert agreed.holds is None and "149 samples would be enough" in agreed.sentence
    assert judge({"rows": [], "spreads": {}}).holds is None


def test_calls_with_the_same_inputs_count_once() -> None:
    told = replay(1500)
    told["repeated"] = list(range(2, 151))
    agreed = judge(told)
    assert agreed.holds is None and agreed.record and agreed.record.samples == 10


def test_too_many_others_are_refused() -> None:
    assert judge(replay(500, other=0.06)).holds is False
    assert judge(replay(500, other=0.06), margin=0.15).holds is True


def test_values_that_are_too_far_off_are_refused_though_the_order_stays() -> None:
    told = replay(500)
    for row in told["rows"]:
        row["error"] = [0.15**2 * 4.0] * 10
    agreed = judge(told)
    assert agreed.holds is False and "too far off" in agreed.sentence


def test_one_sample_far_off_is_enough() -> None:
    told = replay(1500)
    told["rows"][70]["error"][3] = 9.0
    agreed = judge(told)
    assert agreed.holds is False and "one sample" in agreed.sentence


def test_a_kind_of_sample_that_is_farther_off_than_the_others_counts_as_answered_otherwise() -> None:
    told = replay(600, error=1e-4)
    for row in told["rows"][::7]:
        row["error"] = [0.2**2 * 4.0] * 3 + row["error"][3:]
    agreed = judge(told)
    assert agreed.holds is not True and agreed.record and agreed.record.other == pytest.approx(27 / 600)


def test_a_rare_class_that_is_lost_is_named() -> None:
    assert judge(replay(1500, classes=50)).holds is True
    agreed = judge(replay(1500, classes=50, lost=7))
    assert agreed.holds is False and "of class 7" in agreed.sentence


def test_another_form_and_a_value_that_is_no_number_are_told_with_the_call() -> None:
    told = replay(300)
    told["rows"][4] = {"step": 5, "tensor": "scores", "form": False}
    assert judge(told).holds is False and "another form in call 5" in judge(told).sentence
    told["rows"][4] = {"step": 5, "tensor": "scores", "form": True, "finite": False}
    assert judge(told).holds is False and "not finite" in judge(told).sentence


def test_an_output_that_hardly_differs_is_judged_by_its_size() -> None:
    told = replay(300)
    told["spreads"] = {"scores": [0.0, 3.0]}
    assert judge(told).holds is True
    told["spreads"] = {"scores": [0.0, 0.0]}
    assert judge(told).holds is False


def test_a_tensor_without_samples_says_nothing() -> None:
    """The boxes of a detector that finds none: the other answers decide, and where there are none, nothing does."""
    told = replay(1500)
    boxes = [{**row, "tensor": "boxes", "other": [], "error": []} for row in told["rows"]]
    assert judge({**told, "rows": boxes}).holds is None
    agreed = judge({**told, "rows": [*told["rows"], *boxes]})
    assert agreed.holds is True and agreed.record and agreed.record.tensor == "scores"


def test_answers_without_a_place_say_nothing() -> None:
    """A detector's (1, 0, 6), of which the mean over places is no number."""
    told = replay(1500)
    boxes = [{**row, "tensor": "boxes", "other": [math.nan] * 10, "error": [math.nan] * 10} for row in told["rows"]]
    assert judge({**told, "rows": boxes}).holds is None
    assert judge({**told, "rows": [*told["rows"], *boxes]}).holds is True


def test_calls_with_other_inputs_are_counted_in_the_sentence() -> None:
    told = replay(1500)
    assert "other inputs" not in judge(told).sentence
    told["other_inputs"] = [3, 4]
    assert judge(told).holds and judge(told).sentence.endswith("; 2 calls with other inputs could not be compared")
    told["other_inputs"] = list(range(1, 151))
    assert judge(told).sentence == "no answer could be compared; 150 calls with other inputs could not be compared"
