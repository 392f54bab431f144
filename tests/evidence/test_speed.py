"""Simulated duels with a known truth: do the intervals cover it, and is the noise never adopted?"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from overdrive.core.interval import Interval
from overdrive.evidence import student
from overdrive.evidence.speed import (
    LOOKS,
    Pair,
    Verdict,
    break_even_steps,
    decided,
    futile,
    noise_floor,
    seconds_per_step,
    speedup,
    speedup_of_these,
    verdict,
)


def duel(
    rng: np.random.Generator,
    truth: float = 1.0,
    processes: int = 1,
    blocks: int = 10,
    process_sd: float = 0.0,
    block_sd: float = 0.0,
    autocorrelation: float = 0.0,
    freedom: int | None = None,
) -> list[Pair]:
    """Pairs of blocks in which B is `truth` times as fast as A; few degrees of freedom are heavy tails."""
    pairs = []
    for process in range(processes):
        noise = rng.standard_normal(blocks)
        if freedom is not None:
            noise = rng.standard_t(freedom, blocks) / math.sqrt(freedom / (freedom - 2))
        for index in range(1, blocks):
            noise[index] = autocorrelation * noise[index - 1] + math.sqrt(1 - autocorrelation**2) * noise[index]
        ratios = math.log(truth) + process_sd * rng.standard_normal() + block_sd * noise
        pairs += [Pair(process, 10, 0.2 * math.exp(r), 0.2, bool(i % 2)) for i, r in enumerate(ratios)]
    return pairs


def coverage(duels: int, confidence: float = 0.95, **kind: float) -> float:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(duels):
        interval = speedup(duel(rng, truth=1.3, **kind), confidence)  # type: ignore[arg-type]
        hits += interval.low <= 1.3 <= interval.high
    return hits / duels


@pytest.mark.parametrize("processes", [3, 5])
def test_the_interval_covers_the_truth_of_processes_that_differ(processes: int) -> None:
    assert coverage(500, processes=processes, blocks=10, process_sd=0.03, block_sd=0.08) >= 0.93


@pytest.mark.parametrize("blocks", [10, 20, 80])
@pytest.mark.parametrize("noise", [{}, {"autocorrelation": 0.2}, {"freedom": 3}])
def test_the_interval_of_one_process_covers_its_own_truth(blocks: int, noise: dict[str, float]) -> None:
    assert coverage(300, blocks=blocks, block_sd=0.08, **noise) >= 0.92


def test_blocks_that_resemble_their_neighbours_do_not_narrow_the_interval_much() -> None:
    assert coverage(300, blocks=40, block_sd=0.08, autocorrelation=0.4) >= 0.88
    assert coverage(300, processes=3, blocks=20, process_sd=0.03, block_sd=0.08, autocorrelation=0.6) >= 0.93


def test_a_program_against_itself_is_hardly_ever_called_faster() -> None:
    rng = np.random.default_rng(3)
    adopted = 0
    for _ in range(400):
        pairs = duel(rng, blocks=LOOKS[-1], block_sd=0.10)
        verdicts = (decided(pairs[:look]) for look in LOOKS)
        adopted += next(seen for seen in verdicts if seen) is Verdict.FASTER
    assert adopted / 400 <= 0.03


def test_a_planted_five_percent_is_found() -> None:
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(60):
        pairs = duel(rng, truth=1.05, blocks=LOOKS[-1], block_sd=0.05)
        verdicts = (decided(pairs[:look]) for look in LOOKS)
        found += next(seen for seen in verdicts if seen) is Verdict.FASTER
    assert found / 60 >= 0.9


@pytest.mark.fault(21)
def test_a_stalled_block_does_not_move_the_estimate() -> None:
    pairs = duel(np.random.default_rng(5), truth=1.2, blocks=20, block_sd=0.01)
    stalled = [Pair(0, 10, 20.0, 0.2, True), *pairs[1:]]
    assert speedup(stalled).estimate == pytest.approx(1.2, rel=0.02)


def test_the_speedup_of_the_swapped_duel_is_the_inverse() -> None:
    pairs = duel(np.random.default_rng(6), truth=1.2, processes=3, process_sd=0.02, block_sd=0.05)
    swapped = [Pair(p.process, p.steps, p.seconds_b, p.seconds_a, not p.a_first) for p in pairs]
    there, back = speedup(pairs), speedup(swapped)
    assert back.estimate == pytest.approx(1 / there.estimate)
    assert back.low == pytest.approx(1 / there.high)


def test_the_same_pairs_give_the_same_interval() -> None:
    pairs = duel(np.random.default_rng(8), blocks=20, block_sd=0.05)
    assert speedup(pairs) == speedup(list(pairs))


def test_a_higher_confidence_gives_a_wider_interval_that_holds_the_narrower() -> None:
    pairs = duel(np.random.default_rng(9), blocks=20, block_sd=0.05)
    narrow, wide = speedup(pairs, 0.8), speedup(pairs, 0.99)
    assert wide.low < narrow.low < narrow.estimate == wide.estimate < narrow.high < wide.high


def test_more_processes_make_it_surer_when_they_differ_more_blocks_do_not() -> None:
    def width(processes: int, blocks: int) -> float:
        rng = np.random.default_rng(10)
        kinds = [speedup(duel(rng, 1.0, processes, blocks, 0.05, 0.02)) for _ in range(40)]
        return float(np.mean([math.log(each.high / each.low) for each in kinds]))

    assert width(8, 10) < width(4, 10) / 1.5
    assert width(4, 40) > width(4, 10) / 1.2


def test_little_data_is_inconclusive_and_never_an_error() -> None:
    one = speedup([Pair(0, 10, 0.4, 0.2, True)])
    assert (one.low, one.estimate, one.high) == (0.0, pytest.approx(2.0), math.inf)
    assert verdict(one) is Verdict.INCONCLUSIVE
    assert verdict(speedup([Pair(0, 10, 0.4, 0.2, True), Pair(1, 10, 0.5, 0.2, True)])) is Verdict.INCONCLUSIVE
    uneven = [*duel(np.random.default_rng(1), 2.0, 3, 10, 0.01, 0.01), Pair(9, 10, 0.4, 0.2, True)]
    assert verdict(speedup(uneven)) is Verdict.FASTER


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_time_is_an_error_and_no_speedup(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        speedup([Pair(0, 10, seconds, 0.2, True)])


def test_no_pairs_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least"):
        speedup([])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.02, 1.3, Verdict.FASTER),
        (1.01, 1.3, Verdict.INCONCLUSIVE),
        (0.995, 1.005, Verdict.SAME),
        (0.99, 1.01, Verdict.SAME),
        (0.995, 1.02, Verdict.INCONCLUSIVE),
        (0.8, 0.98, Verdict.SLOWER),
        (0.5, 2.0, Verdict.INCONCLUSIVE),
        (math.nan, math.nan, Verdict.INCONCLUSIVE),
        (0.0, math.inf, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_keeps_a_margin_of_one_percent(low: float, high: float, expected: Verdict) -> None:
    assert verdict(Interval(low, (low + high) / 2, high)) is expected


def test_a_duel_is_judged_at_looks_only_and_always_at_the_last() -> None:
    clear = duel(np.random.default_rng(2), truth=1.5, blocks=80, block_sd=0.02)
    assert decided(clear[:9]) is None
    assert decided(clear[:10]) is Verdict.FASTER
    vague = duel(np.random.default_rng(2), truth=1.0, blocks=80, block_sd=0.2)
    assert [decided(vague[:look]) for look in LOOKS] == [None, None, None, Verdict.INCONCLUSIVE]


def test_processes_that_differ_widen_what_is_published_and_not_what_is_chosen_by() -> None:
    rng = np.random.default_rng(3)
    one = duel(rng, truth=1.1, blocks=40, block_sd=0.02)
    other = [replace(pair, process=1) for pair in duel(rng, truth=1.6, blocks=10, block_sd=0.02)]
    here, anywhere = speedup_of_these([*one, *other]), speedup([*one, *other])
    assert here.low > 1.28 and here.high < 1.37  # each process counts alike, however many blocks it made
    assert here.estimate == anywhere.estimate and anywhere.low < 1 < 10 < anywhere.high
    assert speedup_of_these(one) == speedup(one)


def test_what_comes_between_two_looks_does_not_count() -> None:
    vague = duel(np.random.default_rng(2), truth=1.0, blocks=10, block_sd=0.2)
    tempting = [*vague, *duel(np.random.default_rng(2), truth=5.0, blocks=9, block_sd=0.001)]
    assert decided(tempting) is None


def test_the_noise_floor_is_the_half_width_and_never_less_than_the_bias() -> None:
    quiet = duel(np.random.default_rng(1), blocks=20, block_sd=0.01)
    loud = duel(np.random.default_rng(1), blocks=20, block_sd=0.10)
    biased = duel(np.random.default_rng(1), truth=1.2, blocks=20, block_sd=0.001)
    assert noise_floor(quiet) < 0.02 < noise_floor(loud)
    assert noise_floor(biased) == pytest.approx(0.2, rel=0.02)
    assert noise_floor(loud[:1]) == math.inf


def test_tuning_pays_for_itself_only_where_steps_became_shorter() -> None:
    assert break_even_steps(100.0, 0.5, 0.25) == 400
    assert break_even_steps(100.0, 0.3, 0.2999) is not None
    assert break_even_steps(0.0, 0.5, 0.25) == 0
    assert break_even_steps(100.0, 0.5, 0.5) is None
    assert break_even_steps(100.0, 0.5, 0.6) is None
    assert break_even_steps(math.inf, 0.5, 0.25) is None


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.95, 9, 2.2622), (0.9875, 3, 5.3919), (0.99, 100, 2.6259)],
)
def test_the_quantiles_of_student_agree_with_the_tables(confidence: float, freedom: int, expected: float) -> None:
    assert student.quantile(confidence, freedom) == pytest.approx(expected, abs=1e-3)


def test_student_refuses_what_is_no_probability() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        student.quantile(1.0, 3)


def wiggling(gain: float, noise: float, count: int = 10) -> list[Pair]:
    wiggle = np.random.default_rng(3).normal(0, noise, count)
    wiggle -= wiggle.mean()
    return [Pair(0, 10, float(gain * math.exp(each)), 1.0, True) for each in wiggle]


@pytest.mark.parametrize(
    ("gain", "noise", "given_up"),
    [(1.0, 0.01, True), (1.05, 0.01, False), (1.05, 0.1, False), (1.0, 0.1, True), (1.0, 0.5, True)],
)
def test_what_gains_little_or_would_hardly_be_seen_is_given_up(gain: float, noise: float, given_up: bool) -> None:
    assert futile(wiggling(gain, noise), most=40) is given_up


def test_the_nearer_the_end_of_a_duel_the_surer_its_outcome() -> None:
    assert not futile(wiggling(1.04, 0.1, 20), most=400)
    assert futile(wiggling(1.04, 0.1, 20), most=21)


@pytest.mark.parametrize("truth", [1.05, 1.1])
def test_few_duels_that_would_find_a_gain_are_given_up(truth: float) -> None:
    rng = np.random.default_rng(4)
    duels = [duel(rng, truth, blocks=40, block_sd=0.08, autocorrelation=0.2) for _ in range(60)]
    winners = [pairs for pairs in duels if verdict(speedup(pairs)) is Verdict.FASTER]
    assert len(winners) > 20
    assert sum(futile(pairs[:10], most=40) for pairs in winners) <= 0.05 * len(winners)


@pytest.mark.parametrize("processes", [1, 3])
def test_seconds_per_step_have_the_ratio_that_is_published(processes: int) -> None:
    pairs = duel(np.random.default_rng(1), truth=1.3, processes=processes, blocks=20, block_sd=0.05)
    stalled = [replace(pair, seconds_b=9 * pair.seconds_b) if i % 20 == 3 else pair for i, pair in enumerate(pairs)]
    before, after = seconds_per_step(stalled)
    assert before / after == pytest.approx(speedup(stalled).estimate, rel=1e-12)
    assert after < sum(pair.seconds_b for pair in stalled) / sum(pair.steps for pair in stalled)
