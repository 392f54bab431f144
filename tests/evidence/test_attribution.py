"""Simulated plans with planted gains: is each technique given what it gained, and do the intervals cover it? (2 s)"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from overdrive.core.json_data import to_json
from overdrive.evidence.attribution import Attribution, Names, attribute, configurations, without_effect

Gain = Callable[[frozenset[str]], float]  # a configuration's log-speedup
Times = dict[frozenset[str], list[float]]

FOUR: Names = ("cache", "fused", "bf16", "threads")
GAINS = {"cache": 0.5, "fused": 0.1, "bf16": 0.3, "threads": -0.05, "layout": 0.2, "allocator": 0.15, "compile": 0.4}


def apart(configuration: frozenset[str]) -> float:
    """Techniques that neither help nor hinder each other."""
    return sum(GAINS[name] for name in configuration)


def in_pairs(configuration: frozenset[str]) -> float:
    """Any two of them hinder each other by a tenth of what both gain."""
    return apart(configuration) - 0.1 * sum(GAINS[a] * GAINS[b] for a, b in combinations(sorted(configuration), 2))


def measured(
    names: Names,
    gain: Gain,
    rounds: int = 12,
    noise: float = 0.0,
    seed: int = 0,
    most: int = 16,
    freedom: int | None = None,
) -> Times:
    """Seconds a step; whole rounds are up to twice as slow as others, which must not matter."""
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0, math.log(2), rounds)
    times = {}
    for configuration in configurations(names, most):
        errors = rng.standard_normal(rounds) if freedom is None else rng.standard_t(freedom, rounds)
        times[configuration] = list(np.exp(slow - gain(configuration) + noise * errors))
    return times


def exact_shapley(names: Names, gain: Gain) -> dict[str, float]:
    """By the definition: the weighted mean over all subsets."""
    values = {}
    for name in names:
        others = [each for each in names if each != name]
        values[name] = sum(
            math.factorial(size)
            * math.factorial(len(others) - size)
            / math.factorial(len(names))
            * (gain(frozenset(chosen) | {name}) - gain(frozenset(chosen)))
            for size in range(len(names))
            for chosen in combinations(others, size)
        )
    return values


def product_of_values(found: Attribution) -> float:
    return math.prod(share.shapley.estimate for share in found.shares)


@pytest.mark.parametrize("gain", [apart, in_pairs])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_planted_gains_are_recovered(count: int, gain: Gain) -> None:
    names = tuple(GAINS)[:count]
    found = attribute(names, measured(names, gain))
    whole, truth = frozenset(names), exact_shapley(names, gain)
    for share in found.shares:
        assert math.log(share.shapley.estimate) == pytest.approx(truth[share.name], abs=1e-9)
        assert math.log(share.alone.estimate) == pytest.approx(gain(frozenset({share.name})), abs=1e-9)
        assert math.log(share.last.estimate) == pytest.approx(gain(whole) - gain(whole - {share.name}), abs=1e-9)
    assert math.log(found.total.estimate) == pytest.approx(gain(whole), abs=1e-9)
    assert math.log(found.interaction.estimate) == pytest.approx(gain(whole) - apart(whole), abs=1e-9)


def test_the_full_factorial_gives_the_shapley_value_of_any_interaction() -> None:
    def all_three(configuration: frozenset[str]) -> float:
        return apart(configuration) + 0.3 * (configuration >= {"cache", "fused", "bf16"})

    found = attribute(FOUR, measured(FOUR, all_three))
    truth = exact_shapley(FOUR, all_three)
    assert found.method == "full factorial"
    assert [math.log(share.shapley.estimate) for share in found.shares] == pytest.approx([truth[each] for each in FOUR])
    assert truth["fused"] == pytest.approx(0.1 + 0.1)  # a third each of what only the three together gain


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_the_values_multiply_to_the_total_whatever_the_noise(count: int) -> None:
    names = tuple(GAINS)[:count]
    found = attribute(names, measured(names, in_pairs, noise=0.2, freedom=2))
    assert product_of_values(found) == pytest.approx(found.total.estimate, rel=1e-12)
    alone = math.prod(share.alone.estimate for share in found.shares)
    assert found.interaction.estimate * alone == pytest.approx(found.total.estimate, rel=1e-12)


@pytest.mark.parametrize(
    ("names", "rounds", "freedom", "least"),
    [(FOUR, 10, None, 0.94), (FOUR, 20, None, 0.93), (FOUR, 20, 3, 0.93), (tuple(GAINS)[:5], 12, None, 0.93)],
)
def test_the_intervals_cover_the_truth(names: Names, rounds: int, freedom: int | None, least: float) -> None:
    truth, whole = exact_shapley(names, in_pairs), frozenset(names)
    hits = total = 0
    for seed in range(60):
        found = attribute(names, measured(names, in_pairs, rounds, 0.05, seed, freedom=freedom))
        for share in found.shares:
            last = in_pairs(whole) - in_pairs(whole - {share.name})
            for interval, log in ((share.shapley, truth[share.name]), (share.last, last)):
                hits += interval.low <= math.exp(log) <= interval.high
                total += 1
        hits += found.total.low <= math.exp(in_pairs(whole)) <= found.total.high
        hits += found.interaction.low <= math.exp(in_pairs(whole) - apart(whole)) <= found.interaction.high
        total += 2
    assert least <= hits / total <= 0.995


def test_two_that_do_the_same_share_what_they_gain() -> None:
    def same_thing(configuration: frozenset[str]) -> float:
        return 0.4 * bool(configuration & {"cache", "fused"}) + 0.2 * ("bf16" in configuration)

    found = attribute(FOUR[:3], measured(FOUR[:3], same_thing, noise=0.02))
    cache, fused, bf16 = found.shares
    assert math.log(cache.shapley.estimate) == pytest.approx(0.2, abs=0.03)
    assert math.log(fused.shapley.estimate) == pytest.approx(0.2, abs=0.03)
    assert math.log(bf16.shapley.estimate) == pytest.approx(0.2, abs=0.03)
    assert found.interaction.high < 1  # they hinder each other
    assert set(without_effect(found)) == {"cache", "fused"}  # either can go


def test_the_useless_are_found_weakest_first() -> None:
    gains = {"cache": 0.5, "fused": 0.0, "bf16": 0.3, "threads": -0.1}
    found = attribute(FOUR, measured(FOUR, lambda chosen: sum(gains[name] for name in chosen), noise=0.02))
    assert without_effect(found) == ["threads", "fused"]


def test_what_gains_too_little_to_be_noticed_is_without_effect() -> None:
    gains = {"cache": 0.5, "fused": math.log(1.008)}
    found = attribute(FOUR[:2], measured(FOUR[:2], lambda chosen: sum(gains[name] for name in chosen), noise=1e-4))
    assert found.shares[1].last.low > 1.005 and without_effect(found) == ["fused"]


def test_a_stalled_block_does_not_move_the_values() -> None:
    times = measured(FOUR, apart, noise=0.01)
    clean = attribute(FOUR, times)
    times[frozenset()][3] *= 50
    stalled = attribute(FOUR, times)
    for before, after in zip(clean.shares, stalled.shares, strict=True):
        assert after.shapley.estimate == pytest.approx(before.shapley.estimate, rel=0.01)


def test_what_is_measured_of_small_and_of_large_plans() -> None:
    assert configurations(()) == [frozenset()]
    for count in (1, 2, 3, 4):
        chosen = configurations(FOUR[:count])
        assert len(chosen) == len(set(chosen)) == 2**count
    for count in (5, 6, 7, 8):
        names = tuple("abcdefgh"[:count])
        chosen, whole = configurations(names), frozenset(names)
        assert len(chosen) == len(set(chosen)) == max(2 * count + 2, 4 * count - 4 if count == 5 else 0)
        assert {frozenset(), whole} <= set(chosen)
        assert all({whole - {name}, frozenset({name})} <= set(chosen) for name in names)
    large = configurations(tuple("abcdefgh"), most=40, seed=3)
    assert 28 <= len(large) <= 40 and large == configurations(tuple("abcdefgh"), most=40, seed=3)
    assert set(large) != set(configurations(tuple("abcdefgh"), most=40, seed=4))


def test_the_method_is_told() -> None:
    names = tuple(GAINS)
    found = attribute(names[:5], measured(names[:5], apart))
    assert found.method == "leave-one-out, add-one-in and sampled Shapley (8 of 120 orders)"
    found = attribute(names[:6], measured(names[:6], apart))
    assert found.method == "leave-one-out and add-one-in, with the mean of both as the Shapley value"
    found = attribute(names[:6], measured(names[:6], apart, most=30))
    assert "sampled Shapley" in found.method


def test_it_is_plain_data_and_the_same_each_time() -> None:
    times = measured(FOUR, in_pairs, noise=0.05)
    told = to_json(attribute(FOUR, times))
    assert json.loads(json.dumps(told)) == json.loads(json.dumps(to_json(attribute(FOUR, times))))
    assert [share["name"] for share in told["shares"]] == list(FOUR) and told["rounds"] == 12
    assert set(told["shares"][0]["last"]) == {"low", "estimate", "high"}


def test_one_round_bounds_nothing() -> None:
    found = attribute(FOUR[:1], measured(FOUR[:1], apart, rounds=1))
    assert (found.total.low, found.total.high) == (0.0, math.inf)
    assert found.total.estimate == pytest.approx(math.exp(0.5)) and without_effect(found) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({frozenset(): None}, "the untouched program"),
        ({frozenset({"cache", "fused"}): None}, "cache \\+ fused"),
        ({frozenset({"cache"}): [1.0]}, "the same rounds"),
        ({frozenset({"cache"}): [0.0] * 12}, "more than 0 seconds"),
        ({frozenset({"cache"}): [math.nan] * 12}, "more than 0 seconds"),
    ],
)
def test_times_that_are_none_are_refused(change: dict[frozenset[str], list[float] | None], says: str) -> None:
    times = {**measured(FOUR[:2], apart), **change}
    kept = {configuration: row for configuration, row in times.items() if row is not None}
    with pytest.raises(ValueError, match=says):
        attribute(FOUR[:2], kept)
    with pytest.raises(ValueError, match="the same rounds"):
        attribute(FOUR[:2], {configuration: [] for configuration in configurations(FOUR[:2])})
