"""Where the margin comes from: the model's part of the seeds' spread, and the progress."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.core.json_data import from_json
from overdrive.evidence import student
from overdrive.evidence.margin import batch_noise, margin_from, progress, runs_needed
from overdrive.evidence.registration import SPENT, ArmRun, Registration, of_model

STEPS = 120


def curves(model: float, batches: float, runs: int = 10, drop: float = 2.0, seed: int = 0) -> list[ArmRun]:
    """Losses that fall by `drop` to a level of their seed, under noise of each step's batch; the metric is the last
    third's mean. `model`, `batches`: standard deviations of the level, and of one step."""
    rng = np.random.default_rng(seed)
    fall = drop * np.exp(-np.arange(STEPS) / 10)
    losses = 1 + model * rng.standard_normal((runs, 1)) + fall + batches * rng.standard_normal((runs, STEPS))
    return [ArmRun(i, float(each[-40:].mean()), tuple(map(float, each))) for i, each in enumerate(losses)]


def test_of_the_spread_over_seeds_the_batches_part_is_taken_off() -> None:
    told = margin_from(curves(model=0.05, batches=0.2, runs=400))
    assert batch_noise(curves(0.05, 0.2, 400)) == pytest.approx(0.2 / math.sqrt(40), rel=0.05)
    assert told.spread == pytest.approx(math.hypot(0.05, 0.0316), rel=0.1)
    assert told.value == pytest.approx(1.5 * 0.05, rel=0.15)


def test_a_noisy_program_gets_no_wide_margin_for_its_noise() -> None:
    """All of the spread is the batches': half of it is left, which ten seeds cannot tell from nothing."""
    told = margin_from(curves(model=0.0, batches=0.5, runs=100))
    assert told.value == pytest.approx(0.75 * told.spread)
    assert of_model(1.0, 2.0) == 0.5


def test_a_falling_loss_is_no_noise() -> None:
    steep = [ArmRun(i, 0.0, tuple(np.linspace(3, 1, STEPS))) for i in range(4)]
    assert batch_noise(steep) < 0.003


def test_what_is_refused_is_at_most_two_percent_of_the_progress() -> None:
    told = margin_from(curves(model=0.2, batches=0.01))
    assert told.strict == pytest.approx(0.02 * progress(curves(model=0.2, batches=0.01)), rel=1e-6)  # type: ignore[operator]
    assert told.strict < told.value and "of its progress" in told.rule
    small = margin_from(curves(model=0.001, batches=0.001))
    assert small.strict == small.value


def test_without_progress_the_seeds_alone_tell() -> None:
    told = margin_from(curves(model=0.2, batches=0.01, drop=0.0))
    assert told.strict == told.value > 0.1 and "no progress" in told.rule


def test_a_metric_that_is_printed_has_no_noise_of_batches_and_its_own_progress() -> None:
    runs = [ArmRun(i, 80 + i % 3, (1.0,) * 50, first=20.0) for i in range(10)]
    told = margin_from(runs, is_loss=False)
    assert told.noise == 0 and told.strict == pytest.approx(0.02 * 60.9)
    unknown = margin_from([ArmRun(i, 80 + i % 3) for i in range(10)], is_loss=False)
    assert unknown.strict == unknown.value == pytest.approx(1.5 * unknown.spread)


@pytest.mark.parametrize("level", [0.5, 1e6, 0.0, -3.0])
def test_seeds_that_make_no_difference_leave_a_margin_of_rounding(level: float) -> None:
    for spread in (0.0, 1e-12 * level):
        told = margin_from([ArmRun(0, level), ArmRun(1, level + spread), ArmRun(2, level)])
        assert 0 < told.value <= max(1e-9, 2e-6 * abs(level))
        assert "hardly differ" in told.rule and told.runs == 0


def test_a_margin_of_the_user_s_is_taken_as_it_is_and_told_what_it_costs() -> None:
    runs = curves(model=0.05, batches=0.01)
    for tolerance in (0.2, 0.02):
        told = margin_from(runs, tolerance)
        assert told.value == told.strict == tolerance and told.runs == 0
    assert "it takes 5 runs" in margin_from(runs, 0.5).rule
    few, many = (int(word) for word in margin_from(runs, 0.02).rule.split() if word.isdigit())
    assert few < many and many > 50


def test_so_many_runs_as_are_said_to_be_needed_establish_no_difference_in_nine_of_ten_cases() -> None:
    rng = np.random.default_rng(0)
    for margin in (0.5, 0.8):
        count = runs_needed(margin, 1.0)
        differences = rng.standard_normal((4000, count))
        reach = student.quantile(1 - 2 * SPENT[-1], count - 1) * differences.std(axis=1, ddof=1) / math.sqrt(count)
        passed = float((np.abs(differences.mean(axis=1)) + reach < margin).mean())
        assert 0.88 < passed < 0.93


def test_failed_runs_give_no_margin() -> None:
    assert margin_from([ArmRun(0, math.nan), ArmRun(1, 1.0), ArmRun(2, 2.0), ArmRun(3, 3.0)]).value == 1.5
    for runs in ([], [ArmRun(0, 1.0)], [ArmRun(0, math.nan), ArmRun(1, 2.0)]):
        with pytest.raises(ValueError, match="needs two runs of the original"):
            margin_from(runs)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_tolerance_is_an_error(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance must be above 0"):
        margin_from([ArmRun(0, 1.0), ArmRun(1, 2.0)], tolerance)


def test_what_was_written_down_by_an_earlier_version_is_read() -> None:
    old = {
        "metric": "training loss",
        "horizon": 300,
        "whole": False,
        "seeds": list(range(1, 17)),
        "looks": [10, 16],
        "margin": 0.03,
        "margin_rule": "1.5 standard deviations over 10 seeds of the original",
        "margin_runs": 10,
        "alpha": 0.05,
    }
    registration = from_json(Registration, old)
    assert registration.certain(0.025) == pytest.approx(0.69, abs=0.005)
    assert registration.alpha_at(10) == registration.alpha_at(16) == 0.025
    run = from_json(ArmRun, {"seed": 3, "value": 0.5, "losses": [1.0, 0.5]})
    assert run == ArmRun(3, 0.5, (1.0, 0.5)) and not run.numbers
