"""Teacher-forced errors: what rounding does passes, what it does not is caught."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from overdrive.evidence.rounding import Row, judge, rows_of, usable

STEPS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 21, 28, 38, 51, 68, 91, 120)
TENSORS = {"conv.weight": 4000, "conv.bias": 16, "bn.weight": 16, "fc.weight": 12000, "fc.bias": 10}


def pupil(seed: int, worse: float = 1.0, unit: float = 6e-8) -> list[Row]:
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
        base = pupil(seed)
        judged = judge(base, sized_like(base, pupil(1000 + seed)))
        assert judged.holds, judged.sentence
        assert judged.evidence["states"] == 16 and judged.evidence["tensors"] == 6


def test_a_lower_precision_is_caught_by_its_mean() -> None:
    base = pupil(0)
    judged = judge(base, sized_like(base, pupil(1, worse=1.8)))
    assert judged.holds is False and "times the original's own" in judged.sentence


@pytest.mark.parametrize("tensor", list(TENSORS))
@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_one_wrong_tensor_is_caught(tensor: str, kind: str) -> None:
    base = pupil(0)
    wrong = [
        replace(row, error=1e-3 * row.size) if (row.kind, row.tensor) == (kind, tensor) else row
        for row in sized_like(base, pupil(1))
    ]
    judged = judge(base, wrong)
    assert judged.holds is False and tensor in judged.sentence


def test_a_wrong_gradient_in_a_single_state_is_caught() -> None:
    base = pupil(0)
    wrong = [
        replace(row, error=0.05 * row.size) if (row.step, *row.key) == (51, "gradient", "fc.weight") else row
        for row in sized_like(base, pupil(1))
    ]
    assert judge(base, wrong).holds is False


def test_a_flipped_maximum_in_three_states_passes() -> None:
    base = pupil(0)
    flipped = [
        replace(row, error=1e-3 * row.size) if row.step in (21, 51, 120) else row for row in sized_like(base, pupil(1))
    ]
    assert judge(base, flipped).holds


def test_a_gradient_that_is_all_rounding_passes() -> None:
    """A bias before batch normalisation: its true gradient is zero."""

    def nothing(rows: list[Row], seed: int) -> list[Row]:
        chance = random.Random(seed)
        return [
            replace(row, size=1e-17, error=1e-9 * chance.lognormvariate(0, 0.5)) if row.tensor == "conv.bias" else row
            for row in rows
        ]

    base = pupil(0)
    assert judge(nothing(base, 1), nothing(sized_like(base, pupil(1)), 2)).holds


def test_what_is_missing_or_not_finite_is_caught() -> None:
    base = pupil(0)
    without = [row for row in base if row.tensor != "fc.bias"]
    assert judge(base, without).holds is False
    broken = [replace(row, error=None) if row.step == 9 else row for row in base]
    assert judge(base, broken).holds is False
    assert judge(broken, base).holds  # the original itself is not finite there


def test_too_few_states_say_nothing() -> None:
    base = [row for row in pupil(0) if row.step < 3]
    assert judge(base, base).holds is None


def test_a_reference_that_computed_something_else_is_not_used() -> None:
    assert usable(pupil(0)) is None
    assert "something else" in (usable(pupil(0, unit=0.5)) or "")
    assert "states" in (usable([]) or "")


def test_states_with_other_batches_do_not_count() -> None:
    rows = [{"step": step, "kind": "update", "tensor": "w", "error": 0.0, "size": 1.0, "count": 1} for step in (1, 2)]
    assert [row.step for row in rows_of({"rows": rows, "other_inputs": [2]})] == [1]
