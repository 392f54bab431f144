"""Errors of replayed steps: what rounding does passes, what it does not is caught."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from overdrive.evidence.rounding import Row, judge, rows_of, usable

STEPS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 21, 28, 38, 51, 68, 91, 120)
TENSORS = {"conv.weight": 4000, "conv.bias": 16, "bn.weight": 16, "fc.weight": 12000, "fc.bias": 10}


def candidate(seed: int, worse: float = 1.0, unit: float = 6e-8) -> list[Row]:
    """Rounding errors as they come: proportional to the tensor, luckier for small ones."""
    chance = random.Random(seed)
    rows = []
    for step in STEPS:
        for tensor, count in TENSORS.items():
            size = 10 ** chance.uniform(-4, 0)
            luck = 0.6 if count < 500 else 0.15
            rows += [
                Row(step, kind, tensor, worse * unit * size * chance.lognormvariate(0, luck), size, count)
                for kind in ("gradient", "update")
            ]
        rows.append(Row(step, "buffer", "bn.running_mean", worse * unit, 1.0, 16))
    return rows


def sized_like(base: list[Row], other: list[Row]) -> list[Row]:
    return [
        replace(two, size=one.size, error=(two.error or 0) / max(two.size, 1e-30) * one.size)
        for one, two in zip(base, other, strict=True)
    ]


def test_another_order_of_summation_passes() -> None:
    for seed in range(200):
        base = candidate(seed)
        judged = judge(base, sized_like(base, candidate(1000 + seed)))
        assert judged.holds, judged.sentence
        assert judged.evidence["states"] == 16 and judged.evidence["tensors"] == 6


def test_a_lower_precision_is_caught_by_its_mean() -> None:
    base = candidate(0)
    judged = judge(base, sized_like(base, candidate(1, worse=1.8)))
    assert judged.holds is False and "times the original's own" in judged.sentence


@pytest.mark.parametrize("tensor", list(TENSORS))
@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_one_wrong_tensor_is_caught(tensor: str, kind: str) -> None:
    base = candidate(0)
    wrong = [
        replace(row, error=1e-3 * row.size) if (row.kind, row.tensor) == (kind, tensor) else row
        for row in sized_like(base, candidate(1))
    ]
    judged = judge(base, wrong)
    assert judged.holds is False and tensor in judged.sentence


def test_a_wrong_gradient_in_a_single_state_is_caught() -> None:
    base = candidate(0)
    wrong = [
        replace(row, error=0.05 * row.size) if (row.step, *row.key) == (51, "gradient", "fc.weight") else row
        for row in sized_like(base, candidate(1))
    ]
    assert judge(base, wrong).holds is False


def test_a_flipped_maximum_in_three_states_passes() -> None:
    base = candidate(0)
    rows = sized_like(base, candidate(1))
    flipped = [replace(row, error=1e-3 * row.size) if row.step in (21, 51, 120) else row for row in rows]
    assert judge(base, flipped).holds


def test_a_gradient_that_is_all_rounding_passes() -> None:
    """A bias before batch normalisation: its true gradient is zero."""

    def nothing(rows: list[Row], seed: int) -> list[Row]:
        chance = random.Random(seed)
        return [
            replace(row, size=1e-17, error=1e-9 * chance.lognormvariate(0, 0.5)) if row.tensor == "conv.bias" else row
            for row in rows
        ]

    base = candidate(0)
    assert judge(nothing(base, 1), nothing(sized_like(base, candidate(1)), 2)).holds


def test_what_is_missing_or_not_finite_is_caught() -> None:
    base = candidate(0)
    without = [row for row in base if row.tensor != "fc.bias"]
    assert judge(base, without).holds is False
    broken = [replace(row, error=None) if row.step == 9 else row for row in base]
    assert judge(base, broken).holds is False
    assert judge(broken, base).holds  # the original itself is not finite there


def test_too_few_states_say_nothing() -> None:
    base = [row for row in candidate(0) if row.step < 3]
    assert judge(base, base).holds is None


def test_a_reference_that_computed_something_else_is_not_used() -> None:
    assert usable(candidate(0)) is None
    assert "something else" in (usable(candidate(0, unit=0.5)) or "")
    assert "states" in (usable([]) or "")


def test_states_with_other_batches_do_not_count() -> None:
    rows = [{"step": step, "kind": "update", "tensor": "w", "error": 0.0, "size": 1.0, "count": 1} for step in (1, 2)]
    assert [row.step for row in rows_of({"rows": rows, "other_inputs": [2]})] == [1]


def one_tensor(count: int, times: float, states: int = len(STEPS), unit: float = 6e-6) -> tuple[list[Row], list[Row]]:
    """Two candidates whose every error is the same, but of one tensor, which in some states is `times` as far off.

    Errors of 6e-6 are well above the units of the last place that anything may be off.
    """
    base = [replace(row, size=1.0, error=unit) for row in candidate(0)]
    base = [replace(row, count=count) if row.tensor == "conv.weight" else row for row in base]
    off = STEPS[:states]
    mine = [
        replace(row, error=times * unit) if row.step in off and row.key == ("gradient", "conv.weight") else row
        for row in base
    ]
    return base, mine


@pytest.mark.parametrize(("count", "within", "beyond"), [(4000, 1.9, 2.2), (400, 7.8, 8.4)])
def test_a_tensor_may_be_so_many_times_as_far_off_and_no_more(count: int, within: float, beyond: float) -> None:
    assert judge(*one_tensor(count, within)).holds
    judged = judge(*one_tensor(count, beyond))
    assert judged.holds is False and "conv.weight" in judged.sentence


def test_an_original_in_sixteen_bits_allows_three_times() -> None:
    assert judge(*one_tensor(4000, 2.8, unit=2e-3)).holds
    assert judge(*one_tensor(4000, 3.3, unit=2e-3)).holds is False


@pytest.mark.parametrize(("states", "holds"), [(4, True), (5, False)])
def test_a_quarter_of_the_states_may_have_a_flip(states: int, holds: bool) -> None:
    assert judge(*one_tensor(4000, 500.0, states)).holds is holds


def test_a_few_units_of_the_last_place_are_nothing() -> None:
    unit = 2.0**-24
    base, mine = one_tensor(4000, 1.0, unit=unit * 0.01)
    key = ("buffer", "bn.running_mean")  # which is not in the mean over all tensors

    def off(units: float) -> bool | None:
        return judge(base, [replace(row, error=units * unit) if row.key == key else row for row in mine]).holds

    assert off(3.5)
    assert off(4.5) is False


def test_the_mean_over_all_tensors_may_be_a_quarter_worse() -> None:
    def worse(times: float) -> bool | None:
        base, mine = one_tensor(4000, 1.0)
        return judge(base, [replace(row, error=times * (row.error or 0)) for row in mine]).holds

    assert worse(1.2)
    assert worse(1.3) is False


def test_in_one_state_no_error_may_be_larger_than_a_flip() -> None:
    assert judge(*one_tensor(4000, 1500.0, states=1)).holds  # 0.9 % of its size
    assert judge(*one_tensor(4000, 1800.0, states=1)).holds is False  # 1.1 %


@pytest.mark.parametrize(("share", "holds"), [(0.25, True), (0.35, False)])
def test_in_one_state_an_update_may_be_off_by_a_turned_sign(share: float, holds: bool) -> None:
    base, _ = one_tensor(4000, 1.0)
    place = (51, "update", "fc.weight")
    mine = [replace(row, error=share) if (row.step, *row.key) == place else row for row in base]
    assert judge(base, mine).holds is holds
