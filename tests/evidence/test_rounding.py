"""Errors of replayed steps: what rounding does passes, what it does not is caught."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from overdrive.evidence.replayed import TensorRow, measured, rows_of, usable
from overdrive.evidence.rounding import judge

STEPS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 21, 28, 38, 51, 68, 91, 120)
TENSORS = {"conv.weight": 4000, "conv.bias": 16, "bn.weight": 16, "fc.weight": 12000, "fc.bias": 10}


def candidate(seed: int, worse: float = 1.0, unit: float = 6e-8) -> list[TensorRow]:
    """Rounding errors as they come: proportional to the tensor, luckier for small ones."""
    chance = random.Random(seed)
    rows = []
    for step in STEPS:
        for tensor, count in TENSORS.items():
            size = 10 ** chance.uniform(-4, 0)
            luck = 0.6 if count < 500 else 0.15
            rows += [
                TensorRow(step, kind, tensor, worse * unit * size * chance.lognormvariate(0, luck), size, count)
                for kind in ("gradient", "update")
            ]
        rows.append(TensorRow(step, "buffer", "bn.running_mean", worse * unit, 1.0, 16))
    return rows


def sized_like(base: list[TensorRow], other: list[TensorRow]) -> list[TensorRow]:
    return [
        replace(two, size=one.size, error=(two.error or 0) / max(two.size, 1e-30) * one.size)
        for one, two in zip(base, other, strict=True)
    ]


def test_another_order_of_summation_passes() -> None:
    for seed in range(200):
        base = candidate(seed)
        judged = judge(base, sized_like(base, candidate(1000 + seed)))
        assert judged.holds, judged.sentence
        assert judged.record.states == 16 and judged.record.tensors == 6


def test_the_sentence_says_how_many_bits_are_lost() -> None:
    base = candidate(0, unit=6e-6)
    judged = judge(base, [replace(row, error=8 * (row.error or 0)) for row in base])
    assert judged.holds and "3.0 bits lost" in judged.sentence and judged.record.bits == pytest.approx(3, abs=0.1)
    assert "as near to fp64" in judge(base, base).sentence


@pytest.mark.parametrize(("bits", "holds"), [(5.8, True), (6.3, False)])
def test_six_bits_are_rounding_and_no_more(bits: float, holds: bool) -> None:
    judged = judge(*one_tensor(4000, 2.0**bits))
    assert judged.holds is holds
    assert holds or ("conv.weight" in judged.sentence and "bits" in judged.sentence)


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
        replace(row, error=0.15 * row.size) if (row.step, *row.key) == (51, "gradient", "fc.weight") else row
        for row in sized_like(base, candidate(1))
    ]
    judged = judge(base, wrong)
    assert judged.holds is False and "in step 51" in judged.sentence


def flipped(rows: list[TensorRow], states: tuple[int, ...], share: float = 1e-3) -> list[TensorRow]:
    """A ReLU's argument fell to the other side of zero."""
    return [replace(row, error=share * row.size) if row.step in states else row for row in rows]


def test_flips_pass_where_the_original_has_as_many() -> None:
    base, mine = candidate(0), sized_like(candidate(0), candidate(1))
    assert judge(base, flipped(mine, (21, 51, 120))).holds
    assert judge(flipped(base, STEPS[:7]), flipped(mine, STEPS[7:14])).holds
    assert judge(flipped(base, STEPS[:7]), mine).holds


def test_a_flip_in_the_original_excuses_no_tensor_that_is_wrong_everywhere() -> None:
    """It did, where all states were pooled: one accident was worth the factor of a hundred."""
    base = flipped(candidate(0), (51,))
    wrong = [
        replace(row, error=300 * (row.error or 0)) if row.key == ("gradient", "fc.weight") else row
        for row in sized_like(base, candidate(1))
    ]
    assert judge(base, wrong).holds is False


def test_what_is_far_off_in_more_states_than_chance_allows_is_caught() -> None:
    """In ten of 32 states, and never in the original; too few for the median."""
    rows = [replace(row, step=step) for row in candidate(0)[:11] for step in range(1, 33)]
    states = tuple(range(3, 33, 3))
    assert len(states) == 10
    assert judge(rows, flipped(rows, states)).holds is False
    assert judge(rows, flipped(rows, states[:9])).holds
    assert judge(flipped(rows, (1, 2, 4, 5)), flipped(rows, states)).holds


@pytest.mark.parametrize(("along", "holds"), [(3e-6, True), (1e-5, False)])
def test_an_error_of_one_direction_is_no_rounding(along: float, holds: bool) -> None:
    """A learning rate off by 1e-5, in a program whose own errors are as large: no bits are lost."""
    base = [replace(row, size=1.0, error=2e-5) for row in candidate(0)]
    chance = random.Random(1)
    mine = [
        replace(row, along=along + chance.gauss(0, 1e-6)) if row.key == ("update", "fc.weight") else row for row in base
    ]
    judged = judge(base, mine)
    assert judged.holds is holds
    assert holds or "same direction" in judged.sentence


def test_errors_without_a_direction_have_none() -> None:
    """Of 200 candidates whose errors lie along the reference at random, none is refused."""
    for seed in range(200):
        chance = random.Random(seed)
        base = [replace(row, size=1.0, error=2e-5, along=chance.gauss(0, 2e-5)) for row in candidate(0)]
        assert judge(base, [replace(row, along=chance.gauss(0, 2e-5)) for row in base]).holds


def test_where_the_reference_is_zero_the_other_tensors_say_what_is_small() -> None:
    """Behind a layer of zeros all gradients are; another kernel may leave 1e-12 there."""
    base = [replace(row, size=0.0, error=0.0) if row.tensor == "conv.weight" else row for row in candidate(0)]
    mine = [replace(row, error=1e-12) if row.tensor == "conv.weight" else row for row in base]
    assert judge(base, mine).holds
    large = [replace(row, error=1e-2) if row.tensor == "conv.weight" else row for row in base]
    assert judge(base, large).holds is False


def test_a_gradient_that_is_all_rounding_passes() -> None:
    """A bias before batch normalisation: its true gradient is zero."""

    def nothing(rows: list[TensorRow], seed: int) -> list[TensorRow]:
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


def one_tensor(
    count: int, times: float, states: int = len(STEPS), unit: float = 6e-6
) -> tuple[list[TensorRow], list[TensorRow]]:
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


def test_an_original_in_sixteen_bits_allows_three_times() -> None:
    assert judge(*one_tensor(4000, 2.8, unit=2e-3)).holds
    assert judge(*one_tensor(4000, 3.3, unit=2e-3)).holds is False


def test_a_few_units_of_the_last_place_are_nothing() -> None:
    unit = 2.0**-24
    base, mine = one_tensor(4000, 1.0, unit=unit * 0.01)
    key = ("buffer", "bn.running_mean")

    def off(units: float) -> bool | None:
        return judge(base, [replace(row, error=units * unit) if row.key == key else row for row in mine]).holds

    assert off(100)  # 5.7 bits above two units
    assert off(140) is False


def test_flips_in_most_states_pass_where_a_disturbed_original_has_them_too() -> None:
    """A network with millions of activations: a kernel three bits less careful meets a tie in most states."""
    base, mine = candidate(0), flipped(sized_like(candidate(0), candidate(1)), STEPS[:13])
    assert judge(base, mine).holds is False
    assert judge(base, mine, disturbed=flipped(base, STEPS[3:])).holds
    assert judge(base, flipped(mine, STEPS, 1e-2), disturbed=flipped(base, STEPS[3:])).holds is False
    assert judge(base, mine, disturbed=base).holds is False


@pytest.mark.parametrize(("share", "holds"), [(0.28, True), (0.35, False)])
def test_in_one_state_an_update_may_be_off_by_a_turned_sign(share: float, holds: bool) -> None:
    base, _ = one_tensor(4000, 1.0)
    place = (51, "update", "fc.weight")
    mine = [replace(row, error=share) if (row.step, *row.key) == place else row for row in base]
    assert judge(base, mine).holds is holds


def losses(seed: int, off: float = 0.0, small: int = 0) -> list[TensorRow]:
    """Of steps of a deep network, known to some units of the last place; in one state off by a share of itself."""
    chance = random.Random(seed)
    rows = []
    for step in STEPS:
        size = 1e-3 if step == small else 2.0
        error = 4e-7 * 2.0 * abs(chance.gauss(0, 1))
        rows.append(TensorRow(step, "loss", "1", off * size if off and step == 51 else error, size, 1))
    return rows


@pytest.mark.parametrize(("share", "holds"), [(1e-5, True), (1e-2, False), (1e-3, False)])
def test_a_loss_that_is_off_in_one_state_is_no_flip(share: float, holds: bool) -> None:
    """Gradients by one hundredth in the last batch of an epoch are no more than a flip, and one loss tells."""
    base, _ = one_tensor(4000, 1.0)
    judged = judge([*base, *losses(0)], [*base, *losses(1, share)])
    assert judged.holds is holds
    assert holds or ("loss" in judged.sentence and "step 51" in judged.sentence)


def test_losses_of_other_kernels_are_as_far_off_as_the_originals() -> None:
    base, _ = one_tensor(4000, 1.0)
    for seed in range(200):
        mine = [replace(row, error=16 * (row.error or 0.0)) for row in losses(1000 + seed, small=9)]
        assert judge([*base, *losses(seed, small=9)], [*base, *mine]).holds, seed


def test_a_loss_that_is_not_there_is_caught() -> None:
    base, _ = one_tensor(4000, 1.0)
    assert judge([*base, *losses(0)], base).holds is False


def test_a_state_that_one_side_lacks_is_no_tensor_that_is_missing() -> None:
    """Of a loop whose observations part, some states were of other batches: they do not count."""
    base = candidate(0)
    mine = sized_like(base, candidate(1))
    assert judge(base, [row for row in mine if row.step not in STEPS[:3]]).holds
    assert judge([row for row in base if row.step not in STEPS[:3]], mine).holds
    lost = [row for row in mine if (row.step, row.tensor) != (STEPS[4], "fc.bias")]
    assert judge(base, lost).holds is False


def masked(step: int, error: float, finite: int = 100) -> TensorRow:
    return TensorRow(step, "output", "the model", error, 1.0 if finite else 0.0, finite)


def test_infinities_of_a_mask_have_to_be_the_same_and_the_rest_is_compared() -> None:
    """An infinity less itself is no number: such outputs were not compared at all."""
    exact = np.array([1.0, -np.inf, 3.0, np.nan])
    same = measured(exact + np.array([1e-3, 0, 1e-3, 0]), exact)
    assert same["error"] == pytest.approx(1e-3) and same["size"] == pytest.approx(5**0.5) and same["count"] == 2
    assert same["along"] == pytest.approx(4e-4)
    for other in ([1.0, np.inf, 3.0, np.nan], [1.0, 2.0, 3.0, np.nan], [1.0, -np.inf, np.nan, np.nan]):
        assert measured(np.array(other), exact)["error"] is None
    base = [masked(step, 1e-7) for step in STEPS]
    assert judge(base, base).holds
    assert judge(base, [replace(row, error=None) if row.step == 9 else row for row in base]).holds is False


def test_where_nothing_could_be_compared_nothing_is_established() -> None:
    """It was "0 tensors: as near to fp64 as the original"."""
    broken = [replace(row, error=None) for row in candidate(0)]
    assert judge(broken, candidate(0)).holds is None
    nowhere = [masked(step, 0.0, finite=0) for step in STEPS]
    assert judge(nowhere, nowhere).holds is None and "finite" in judge(nowhere, nowhere).sentence


def test_what_is_not_finite_in_the_original_itself_is_told() -> None:
    broken = [replace(row, error=None) if row.tensor == "fc.bias" else row for row in candidate(0)]
    judged = judge(broken, candidate(0))
    assert judged.holds and "(2 more cannot be compared: not finite in the original itself)" in judged.sentence


def test_a_careful_reference_has_to_be_one_too() -> None:
    assert usable(candidate(0), careful=True) is None
    assert "a careful step computed something else" in (usable(candidate(0, unit=0.5), careful=True) or "")
    assert usable([], careful=True) == "no gradient and no output could be compared"


@pytest.mark.parametrize(("states", "told"), [(9, True), (10, False)])
def test_the_sentence_says_where_there_are_too_few_states_for_the_sign_test(states: int, told: bool) -> None:
    """What was far off in four of nine passed, and nothing said that the test could not tell."""
    rows = [row for row in candidate(0) if row.step in STEPS[:states]]
    judged = judge(rows, flipped(rows, STEPS[:4]))
    assert judged.holds and ("fewer than ten states" in judged.sentence) is told
    calls = [masked(step, 1e-7) for step in STEPS[:4]]
    assert "fewer than ten" not in judge(calls, calls).sentence, "each answer counts by itself"
