"""What sentinels say of steps that were made again: simulated ones, with rounding, flips and faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overdrive.evidence.sentinels import DISTURBED, Doubt, StepSums, distance, is_plainly_rounding

TENSORS, ELEMENTS = 12, 600
Chance = np.random.Generator


def plain_step(chance: Chance) -> dict[str, Any]:
    kinds = ("the gradient", "the update")
    return {
        f"{kind} of layer {n}": chance.normal(size=ELEMENTS).astype(np.float32) * 10.0 ** -(n % 3)
        for n in range(TENSORS)
        for kind in kinds
    }


def off(step: dict[str, Any], chance: Chance, share: float, flips: float = 0.3) -> dict[str, Any]:
    """Off by so much; with this chance an activation flips, and all before it is a hundred times as far off."""
    reached = chance.integers(TENSORS) if chance.random() < flips else 0
    return {
        name: values * (1 + share * (100 if int(name.split()[-1]) < reached else 1) * chance.normal(size=ELEMENTS))
        for name, values in step.items()
    }


def seen(chance: Chance, mine: Any = None, own: float = 2.0**-17) -> Any:
    plain = plain_step(chance)
    disturbed = [off(plain, chance, 2.0**-17) for _ in range(DISTURBED)]
    return distance(mine(plain) if mine else off(plain, chance, own), plain, disturbed)


def test_what_other_kernels_do_is_plainly_rounding_and_a_rate_that_is_off_is_not() -> None:
    chance = np.random.default_rng(0)
    plain = plain_step(chance)
    assert is_plainly_rounding(off(plain, chance, 2.0**-22, flips=0), plain)
    assert not is_plainly_rounding({name: 1.001 * values for name, values in plain.items()}, plain)
    assert not is_plainly_rounding({}, plain)


def test_what_is_no_farther_than_a_disturbed_step_is_hardly_ever_told() -> None:
    chance, told, doubt = np.random.default_rng(1), 0, Doubt()
    for _ in range(1000):
        if doubt.take(seen(chance)):
            told, doubt = told + 1, Doubt()
    assert told == 0  # by the bound it may be one


def test_a_fault_in_every_step_is_told_by_the_fifth() -> None:
    chance, doubt = np.random.default_rng(2), Doubt()
    found = []
    for _ in range(5):
        found.append(doubt.take(seen(chance, lambda plain: {name: 1.01 * each for name, each in plain.items()})))
    assert found == [False] * 4 + [True]


@pytest.mark.parametrize("wrong", [lambda each: -each, lambda each: each * np.nan, np.zeros_like])
def test_a_tensor_that_is_nothing_like_it_is_told_at_once(wrong: Any) -> None:
    name = "the gradient of layer 5"
    found = seen(np.random.default_rng(3), lambda plain: {**plain, name: wrong(plain[name])})
    assert found.wild and found.name == name and Doubt().take(found)


def test_a_missing_gradient_is_told_at_once() -> None:
    found = seen(np.random.default_rng(4), lambda plain: dict(list(plain.items())[1:]))
    assert found.wild


def test_a_plan_that_rounds_to_16_bits_is_the_same_on_average_and_half_a_rate_is_not() -> None:
    chance = np.random.default_rng(5)
    for factor, loss, expected in ((1.0, 1.0, False), (0.5, 1.0, True), (1.0, 1.2, True)):
        sums, told = StepSums(), []
        for _ in range(40):
            plain = plain_step(chance)
            mine = {name: factor * each for name, each in off(plain, chance, 2.0**-8, flips=0).items()}
            noisy = loss * (1 + 0.01 * chance.normal())
            told.append(sums.take(mine, plain, (noisy, 1.0), same_chance=True))
        assert any(told) is expected
        assert not expected or "off on average of" in next(filter(None, told))


def test_directions_are_not_compared_where_other_random_numbers_were_drawn() -> None:
    chance, sums = np.random.default_rng(6), StepSums()
    for _ in range(40):
        steps = [plain_step(chance) for _ in range(2)]  # other masks: all of it is another step
        assert not sums.take(*steps, (1.0, 1.0), same_chance=False)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_told_at_once_if_the_plain_step_is(wrong: float) -> None:
    """It was passed over, and the step counted as the same."""
    plain = plain_step(np.random.default_rng(7))
    one = {**plain, "the gradient of layer 5": plain["the gradient of layer 5"] * wrong}
    assert StepSums().take(plain, plain, (wrong, 1.0), same_chance=True) == "the loss is not finite"
    assert StepSums().take(one, plain, (1.0, 1.0), same_chance=True) == "the size of the gradient is not finite"
    zeros = {name: 0 * each for name, each in plain.items()}
    assert StepSums().take(one, zeros, (1.0, 1.0), same_chance=True) == "the size of the gradient is not finite"


def test_a_plain_step_that_is_not_finite_says_nothing() -> None:
    plain = plain_step(np.random.default_rng(8))
    ruined = {name: each * np.nan for name, each in plain.items()}
    for mine in (plain, ruined):
        assert StepSums().take(mine, ruined, (np.nan, np.nan), same_chance=True) is None
    assert StepSums().take(ruined, ruined, (1.0, 1.0), same_chance=True) == "", "the loss was compared"
