"""Simulated arms with a known truth: who is called equivalent, who is refused, who is left open. Some 3 seconds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from overdrive.core.json_data import from_json, to_json
from overdrive.core.proof_record import StatisticalRecord
from overdrive.evidence.margin import margin_from
from overdrive.evidence.registration import LOOKS, SPENT, ArmRun, Registration
from overdrive.evidence.statistical import Outcome, judge
from tests.conftest import long_but

SIGMA = 0.01  # of the metric over seeds
REGISTERED = Registration(
    "training loss", 100, False, tuple(range(16)), LOOKS, 1.5 * SIGMA, "fixed by the test", spent=SPENT, worse=1
)


def values(
    rng: np.random.Generator,
    shift: float = 0.0,
    spread: float = 1.0,
    runs: int = 16,
    like: list[float] | None = None,
    agreement: float = 0.0,
) -> list[float]:
    """Metrics without curves; `shift` and `spread` in standard deviations over seeds.

    `agreement`: their correlation, seed by seed, with `like`.
    """
    luck = rng.standard_normal(runs)
    if like is not None:
        luck = agreement * (np.array(like) - 0.5) / SIGMA + math.sqrt(1 - agreement**2) * luck
    return [float(value) for value in 0.5 + SIGMA * (shift + spread * luck)]


def plain(metrics: list[float], first_seed: int = 0) -> list[ArmRun]:
    return [ArmRun(first_seed + index, value) for index, value in enumerate(metrics)]


def arm(
    rng: np.random.Generator, first_seed: int = 0, shift: float = 0.0, tau: float = 30.0, noise: float = 0.01
) -> list[ArmRun]:
    """16 runs of 100 steps whose loss falls from 2.3 to a level of their seed; the metric is the last tenth."""
    level = 0.5 + SIGMA * (shift + rng.standard_normal((16, 1)))
    losses = level + 1.8 * np.exp(-np.arange(100) / tau) + noise * rng.standard_normal((16, 100))
    return [
        ArmRun(first_seed + index, float(curve[-10:].mean()), tuple(map(float, curve)))
        for index, curve in enumerate(losses)
    ]


def stepwise(original: list[ArmRun], candidate: list[ArmRun], estimated: bool = True) -> Outcome:
    """As a caller goes: on to the next look until something is established.

    `estimated`: the margin comes from the original's runs of the look; else it is the true one.
    """
    for look in LOOKS:
        registration = registered(original[:look]) if estimated else REGISTERED
        outcome = judge(registration, original[:look], candidate[:look])
        if outcome.equivalent is not None:
            break
    return outcome


def shares(
    trials: int, shift: float = 0.0, spread: float = 1.0, estimated: bool = False, agreement: float = 0.0
) -> tuple[float, float]:
    """How often a candidate is called equivalent and how often refused, by metrics alone; see `stepwise`."""
    rng = np.random.default_rng(11)
    passed = refused = 0
    for _ in range(trials):
        metrics = values(rng)
        original, candidate = plain(metrics), plain(values(rng, shift, spread, 16, metrics, agreement))
        outcome = stepwise(original, candidate, estimated)
        passed += outcome.equivalent is True
        refused += outcome.equivalent is False
    return passed / trials, refused / trials


def registered(original: list[ArmRun]) -> Registration:
    """With the margin that these runs tell."""
    told = margin_from(original)
    return replace(
        REGISTERED, margin=told.value, margin_runs=told.runs, spread=told.spread, noise=told.noise, strict=told.strict
    )


def curve_refusals(trials: int, shift: float = 0.0, tau: float = 30.0, noise: float = 0.01) -> float:
    """How often a candidate is refused with loss curves, and the margin from the original's runs."""
    rng = np.random.default_rng(12)
    refused = 0
    for _ in range(trials):
        original, candidate = arm(rng, 0, 0.0, tau, noise), arm(rng, 0, shift, tau, noise)
        outcome = stepwise(original, candidate)
        refused += outcome.equivalent is False
    return refused / trials


# Called equivalent, and not


@pytest.mark.parametrize("kind", [{"shift": 1.5}, {"shift": -1.5}, {"shift": 1.5, "spread": 2.0}])
def test_a_difference_as_large_as_the_margin_hardly_ever_passes(kind: dict[str, float]) -> None:
    passed, _ = shares(1000, **kind)  # type: ignore[arg-type]
    assert passed <= 0.05 + 0.014  # two standard errors of 1,000 trials


def test_a_harmless_candidate_passes() -> None:
    passed, refused = shares(500)
    assert passed >= 0.95
    assert refused == 0.0


@pytest.mark.parametrize("agreement", long_but([0.0, 0.5, 1.0], [0.0, 0.3, 0.5, 0.7, 0.9, 1.0]))
def test_a_margin_told_by_few_seeds_is_not_taken_for_the_true_one(agreement: float) -> None:
    """8 to 9 % passed at correlations of 0.3 to 0.7, when the margin's uncertainty was a condition of its own."""
    assert shares(1500, shift=1.5, estimated=True, agreement=agreement)[0] <= 0.05 + 0.0113


@pytest.mark.parametrize(("agreement", "power"), [(0.0, 0.86), (0.3, 0.9), (0.5, 0.94), (0.9, 0.98)])
def test_no_difference_is_established_by_sixteen_seeds(agreement: float, power: float) -> None:
    assert shares(500, estimated=True, agreement=agreement)[0] >= power


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9])
def test_three_times_the_spread_hardly_ever_passes(agreement: float) -> None:
    assert shares(300, spread=3.0, estimated=True, agreement=agreement)[0] <= 0.05


def test_runs_that_are_ruined_without_being_infinite_do_not_pass() -> None:
    rng = np.random.default_rng(26)
    for _ in range(50):
        metrics = values(rng)
        ruined = [
            value + 12 * SIGMA * (seed in (2, 9)) for seed, value in enumerate(values(rng, like=metrics, agreement=0.9))
        ]
        outcome = stepwise(plain(metrics), plain(ruined))
        assert outcome.equivalent is not True


def test_what_lies_within_two_percent_of_the_progress_is_said_to() -> None:
    rng = np.random.default_rng(27)
    original = arm(rng)
    close = [replace(run, value=run.value + 1e-4) for run in original]
    registration = replace(registered(original[:10]), margin=0.03, strict=0.01)
    told = judge(registration, original[:10], close[:10])
    assert told.equivalent is True and "equivalent within ±0.01, 2% of its progress" in told.sentence


def test_beyond_two_percent_of_the_progress_is_refused_although_it_is_within_the_margin() -> None:
    rng = np.random.default_rng(28)
    metrics = values(rng)
    original, worse = plain(metrics), plain([value + 0.006 for value in values(rng, like=metrics, agreement=0.999)])
    assert judge(REGISTERED, original, worse).equivalent is True
    refused = judge(replace(REGISTERED, strict=0.004), original, worse)
    assert refused.equivalent is False and "beyond ±0.004, 2% of its progress" in refused.sentence
    assert (refused.strict, refused.margin) == (0.004, REGISTERED.margin)


def test_how_many_runs_would_tell_is_said_where_these_do_not() -> None:
    rng = np.random.default_rng(29)
    noisy = judge(replace(REGISTERED, margin=0.4 * SIGMA), plain(values(rng)), plain(values(rng)))
    assert noisy.equivalent is None and "would tell, if there is no difference" in noisy.sentence


def test_other_results_speak_against_a_candidate_whose_loss_is_the_same() -> None:
    rng = np.random.default_rng(30)
    metrics = values(rng)
    seeds = rng.standard_normal(16)
    original = [replace(run, numbers={"entropy": float(luck)}) for run, luck in zip(plain(metrics), seeds, strict=True)]
    other = [replace(run, numbers={"entropy": run.numbers["entropy"] + 2 + 0.1 * rng.normal()}) for run in original]
    assert judge(REGISTERED, original, original).equivalent is True
    outcome = judge(REGISTERED, original, other)
    assert outcome.equivalent is False and "entropy is 2" in outcome.sentence
    assert outcome.against[0] == "entropy" and "1 other results compared" in outcome.sentence


def test_a_number_that_one_run_lacks_keeps_a_candidate_from_being_equivalent() -> None:
    rng = np.random.default_rng(30)
    original = [replace(run, numbers={"accuracy": 90 + rng.normal()}) for run in plain(values(rng))]
    lacking = [replace(run, numbers={} if run.seed == 3 else run.numbers) for run in original]
    outcome = judge(REGISTERED, original, lacking)
    assert outcome.equivalent is None and "accuracy is missing or not finite in 1 of its 16 runs" in outcome.sentence
    assert judge(REGISTERED, original, [replace(run, numbers={}) for run in original]).equivalent is False
    rarely = [replace(run, numbers={} if run.seed > 2 else run.numbers) for run in original]
    both = judge(REGISTERED, rarely, rarely)
    assert both.equivalent is True and "1 not comparable, as too few runs of both have them" in both.sentence
    assert both.record(REGISTERED, rarely, rarely).products.incomparable == 1


def test_seeds_that_agree_need_less_of_a_margin() -> None:
    assert shares(300, estimated=True, agreement=0.9)[0] >= 0.99
    assert shares(300, shift=0.75, estimated=True, agreement=0.9)[0] > shares(300, shift=0.75, estimated=True)[0] + 0.1


@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_three_standard_deviations_either_way_are_refused_and_never_pass(shift: float) -> None:
    passed, refused = shares(200, shift)
    assert passed == 0.0
    assert refused >= 0.95


@pytest.mark.parametrize("kind", long_but([{}, {"noise": 0.1}], [{}, {"tau": 8.0}, {"noise": 0.1}]))
def test_the_program_against_itself_is_hardly_ever_refused(kind: dict[str, float]) -> None:
    assert curve_refusals(200, **kind) <= 0.01


def test_half_the_margin_is_refused_in_less_than_five_percent() -> None:
    assert curve_refusals(200, shift=0.75) <= 0.05


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_a_program_that_fails_now_and_then_is_hardly_ever_refused_for_it(rate: float) -> None:
    rng = np.random.default_rng(25)
    refused = 0
    for _ in range(500):
        arms = [[math.nan if rng.random() < rate else value for value in values(rng)] for _ in range(2)]
        refused += stepwise(plain(arms[0]), plain(arms[1]), estimated=False).equivalent is False
    assert refused / 500 <= 0.02


@pytest.mark.parametrize("tau", [20.0, 80.0])
def test_twice_as_fast_or_half_as_fast_is_refused_though_the_metric_is_the_same(tau: float) -> None:
    rng = np.random.default_rng(13)
    original = arm(rng, tau=40.0)
    candidate = [replace(run, value=original[i].value) for i, run in enumerate(arm(rng, 0, tau=tau))]
    outcome = judge(REGISTERED, original[:10], candidate[:10])
    assert outcome.equivalent is False
    assert outcome.steps_to_target is not None and outcome.steps_to_target.p < 0.001
    assert "steps instead of" in outcome.sentence and "beyond the margin" not in outcome.sentence


def test_another_speed_is_seen_by_its_road_where_both_reach_the_plateau_early() -> None:
    rng = np.random.default_rng(13)
    outcome = judge(REGISTERED, arm(rng, tau=10.0), arm(rng, 0, tau=5.0))
    assert outcome.equivalent is False
    assert outcome.band is not None and outcome.band.fault


def test_seven_runs_an_arm_are_enough_to_see_another_speed_and_six_are_not() -> None:
    rng = np.random.default_rng(13)
    original, candidate = arm(rng, tau=40.0), arm(rng, 0, tau=20.0)
    for runs, seen in (6, False), (7, True):
        outcome = judge(replace(REGISTERED, looks=(runs,), spent=(), margin=1.0), original, candidate)
        assert ("steps instead of" in outcome.sentence) is seen


def test_a_detour_of_the_curve_is_refused_though_both_ends_are_the_same() -> None:
    rng = np.random.default_rng(14)
    original, candidate = arm(rng), arm(rng)
    bump = 0.3 * np.exp(-((np.arange(100) - 30) ** 2) / 50)
    candidate = [replace(run, losses=tuple(np.array(run.losses) + bump)) for run in candidate]
    outcome = judge(REGISTERED, original, candidate)
    assert outcome.equivalent is False
    assert outcome.band is not None and outcome.band.fault and abs(outcome.band.step - 30) <= 5
    assert "around step" in outcome.sentence
    assert judge(REGISTERED, original, arm(rng)).band.fault is None  # type: ignore[union-attr]


def test_a_tolerance_of_the_metric_holds_for_the_curve_too() -> None:
    rng = np.random.default_rng(15)
    original, candidate = arm(rng), arm(rng, 0, shift=4.0)
    steep = replace(REGISTERED, margin=8 * SIGMA)
    assert judge(REGISTERED, original, candidate).band.fault is not None  # type: ignore[union-attr]
    assert judge(steep, original, candidate).band.fault is None  # type: ignore[union-attr]


# Runs that fail


def failing(runs: list[ArmRun], count: int) -> list[ArmRun]:
    return [replace(run, value=math.nan) if index < count else run for index, run in enumerate(runs)]


def test_one_failed_run_is_enough_not_to_be_equivalent_and_seven_are_refused() -> None:
    rng = np.random.default_rng(16)
    original, candidate = plain(values(rng)), plain(values(rng))
    assert judge(REGISTERED, original, candidate).equivalent is True
    once = judge(REGISTERED, original, failing(candidate, 1))
    assert (once.equivalent, once.not_converged) == (None, (0, 1))
    assert "1 of its runs failed and 0 of the original's" in once.sentence
    often = judge(REGISTERED, original, failing(candidate, 7))
    assert (often.equivalent, often.not_converged) == (False, (0, 7))
    assert "7 of its runs failed" in often.sentence


def test_runs_that_fail_as_often_as_the_original_s_do_not_count_against_it() -> None:
    rng = np.random.default_rng(17)
    original, candidate = plain(values(rng)), plain(values(rng))
    outcome = judge(REGISTERED, failing(original, 2), failing(candidate, 3))
    assert (outcome.equivalent, outcome.not_converged) == (True, (2, 3))


def test_a_run_with_one_loss_that_is_not_finite_has_failed() -> None:
    rng = np.random.default_rng(18)
    original, candidate = arm(rng), arm(rng)
    candidate[3] = replace(candidate[3], losses=(*candidate[3].losses[:50], math.inf, *candidate[3].losses[51:]))
    outcome = judge(REGISTERED, original, candidate)
    assert (outcome.equivalent, outcome.not_converged) == (None, (0, 1))


def test_an_original_that_always_fails_establishes_nothing() -> None:
    failed = failing(plain([0.5] * 16), 16)
    both = judge(REGISTERED, failed, failing(plain([0.5] * 16), 16))
    assert both.equivalent is None and "the original itself failed" in both.sentence
    assert judge(REGISTERED, failed, plain([0.5] * 16)).equivalent is None


# Looks


def test_before_the_first_look_nothing_is_established() -> None:
    for runs in (0, 1, 4):
        outcome = judge(REGISTERED, plain([0.5] * runs), plain([9.0] * runs))
        assert outcome.equivalent is None
        assert outcome.runs == (runs, runs)
        assert "the first look is at 5" in outcome.sentence
    assert judge(REGISTERED, plain([0.5] * 16), plain([9.0] * 4)).equivalent is None


def test_runs_between_two_looks_do_not_count() -> None:
    original, candidate = plain(values(np.random.default_rng(1))), plain(values(np.random.default_rng(2)))
    ruined = [*candidate[:10], *[replace(run, value=9.0) for run in candidate[10:15]]]
    assert judge(REGISTERED, original, ruined) == judge(REGISTERED, original[:10], candidate[:10])


def test_the_order_in_which_runs_came_back_does_not_matter() -> None:
    original, candidate = plain(values(np.random.default_rng(1))), plain(values(np.random.default_rng(2)))
    assert judge(REGISTERED, original[::-1], candidate[::-1]) == judge(REGISTERED, original, candidate)


def test_every_look_has_its_share_of_alpha() -> None:
    original, candidate = plain(values(np.random.default_rng(1))), plain(values(np.random.default_rng(2)))
    wide = judge(REGISTERED, original, candidate).interval
    narrow = judge(replace(REGISTERED, looks=(16,), spent=(0.05,)), original, candidate).interval
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_interval_is_student_s_of_pairs() -> None:
    # By hand: differences 1.5, 1, 1.5, 1, 0.5, 1, 1.5 and 2, of variance 0.2143; the tables' t for 7 is 2.365.
    original = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    candidate = [2.5, 3.0, 4.5, 5.0, 5.5, 7.0, 8.5, 10.0]
    outcome = judge(replace(REGISTERED, looks=(8,), spent=(), alpha=0.025), plain(original), plain(candidate))
    assert outcome.difference == pytest.approx(1.25)
    assert outcome.interval == pytest.approx((0.863, 1.637), abs=1e-3)


@pytest.mark.parametrize("seeds", [[5000, 1], [1, 1], [-1, 0]])
def test_a_run_that_was_not_registered_is_an_error(seeds: list[int]) -> None:
    with pytest.raises(ValueError, match=r"registered|same seed"):
        judge(REGISTERED, plain([0.5] * 16), [ArmRun(seed, 0.5) for seed in seeds])


# The smallest margin


def test_the_smallest_margin_is_the_one_that_just_passes() -> None:
    rng = np.random.default_rng(19)
    original, candidate = plain(values(rng)), plain(values(rng, 0.5))
    smallest = judge(REGISTERED, original, candidate).smallest_margin
    assert judge(replace(REGISTERED, margin=1.001 * smallest), original, candidate).equivalent is True
    assert judge(replace(REGISTERED, margin=0.999 * smallest), original, candidate).equivalent is None


def test_equal_values_are_equivalent_and_others_without_any_spread_are_not() -> None:
    same = judge(REGISTERED, plain([0.5] * 16), plain([0.5] * 16))
    assert (same.equivalent, same.interval, same.smallest_margin) == (True, (0.0, 0.0), 0.0)
    assert judge(REGISTERED, plain([0.5] * 16), plain([0.6] * 16)).equivalent is False
    curves = [ArmRun(seed, 0.5, (0.5,) * 100) for seed in range(16)]
    assert judge(REGISTERED, curves, curves).equivalent is True


def test_values_beyond_all_numbers_establish_nothing() -> None:
    huge = [1e300 * (-1) ** index for index in range(16)]
    outcome = judge(REGISTERED, plain(values(np.random.default_rng(1))), plain(huge))
    assert outcome.equivalent is None and outcome.smallest_margin == math.inf


# What is written down


def test_a_registration_survives_being_written_down() -> None:
    assert from_json(Registration, json.loads(json.dumps(to_json(REGISTERED)))) == REGISTERED


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"looks": ()}, "looks must rise"),
        ({"looks": (1, 16)}, "looks must rise"),
        ({"looks": (16, 10)}, "looks must rise"),
        ({"looks": (10, 17)}, "needs 17 seeds"),
        ({"seeds": (0,) * 16}, "share a seed"),
        ({"margin": 0.0}, "margin must be"),
        ({"margin": math.nan}, "margin must be"),
        ({"alpha": 0.5}, "alpha must lie"),
    ],
)
def test_a_registration_that_proves_nothing_is_an_error(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(REGISTERED, **change)


def test_an_outcome_is_plain_json_even_where_nothing_could_be_had() -> None:
    rng = np.random.default_rng(20)
    for original, candidate in ([], []), (arm(rng), arm(rng)), (arm(rng), failing(arm(rng), 16)):
        record = judge(REGISTERED, original, candidate).record(REGISTERED, original, candidate)
        assert from_json(StatisticalRecord, json.loads(json.dumps(to_json(record), allow_nan=False))) == record


def test_the_sentence_says_what_a_person_needs() -> None:
    rng = np.random.default_rng(21)
    sentence = judge(REGISTERED, arm(rng), arm(rng)).sentence
    for told in ("equivalent", "training loss over 100 steps", "margin ±0.015", "smallest that would pass", "16 and"):
        assert told in sentence
    assert sentence.endswith("a proxy, not a proof") and "\n" not in sentence
    whole = replace(REGISTERED, whole=True, horizon=0)
    assert "proxy" not in judge(whole, arm(rng), arm(rng)).sentence


def test_a_judgement_is_the_same_every_time() -> None:
    rng = np.random.default_rng(22)
    original, candidate = arm(rng), arm(rng)
    assert judge(REGISTERED, original, candidate) == judge(REGISTERED, original, candidate)


# Curves of their own


def test_curves_too_short_or_of_too_few_runs_are_not_judged() -> None:
    rng = np.random.default_rng(23)
    original, candidate = arm(rng), arm(rng)
    for losses in (slice(0, 19), slice(0, 0)):
        short = [replace(run, losses=run.losses[losses]) for run in candidate]
        outcome = judge(REGISTERED, original, short)
        assert outcome.steps_to_target is None and outcome.band is None and outcome.equivalent is True
    single = [candidate[0], *[replace(run, losses=()) for run in candidate[1:]]]
    assert judge(REGISTERED, original, single).band is None


def test_a_run_that_never_comes_to_the_target_counts_with_all_its_steps() -> None:
    rng = np.random.default_rng(24)
    original = arm(rng)
    stuck = [replace(run, losses=(2.3,) * 100) for run in arm(rng)]
    pace = judge(REGISTERED, original, stuck).steps_to_target
    assert pace is not None
    assert pace.reached[0] >= 14 and pace.reached[1] == 0
    assert pace.candidate == 100.0 and pace.original == pytest.approx(80, abs=6)
