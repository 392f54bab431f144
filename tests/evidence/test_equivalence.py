"""The first proof catches what is wrong, and lets pass what is not."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from overdrive.contract import Contract
from overdrive.evidence.equivalence import check, first_non_finite, same_bits
from overdrive.trials.order import Trace

EXACT, ROUNDING, STATISTICAL = Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL


def trace(seed: int = 0, steps: int = 120, plateau: float = 0.5) -> Trace:
    """A run whose loss falls from 2.3 to a plateau, with the noise of its seed."""
    chance = random.Random(seed)
    level = plateau + chance.gauss(0, 0.01)
    losses = [(level + 1.8 * math.exp(-step / 20) + chance.gauss(0, 0.05),) for step in range(steps)]
    return Trace(
        steps=steps,
        losses=tuple(losses),
        rates=(0.1,) * steps,
        samples=64.0 * steps,
        batches=("a", "b", "c"),
        state=f"state {seed}",
    )


ORIGINAL = trace()
SEEDS = [trace(seed) for seed in (1, 2, 3)]


def moved(factor: float, **changes: Any) -> Trace:
    losses = tuple((step[0] * factor,) for step in ORIGINAL.losses)
    return replace(ORIGINAL, losses=losses, state="other", **changes)


def test_equal_bits_are_exact_whatever_was_declared() -> None:
    for declared in (EXACT, ROUNDING, STATISTICAL):
        assert check(declared, None, ORIGINAL, trace(), True).level is EXACT


def test_one_other_bit_is_not_exact() -> None:
    losses = (*ORIGINAL.losses[:-1], (math.nextafter(ORIGINAL.losses[-1][0], 9),))
    judged = check(EXACT, None, ORIGINAL, replace(ORIGINAL, losses=losses), True)
    assert judged.level is None and "step 120 differs" in judged.sentence
    assert check(EXACT, None, ORIGINAL, replace(ORIGINAL, state="x"), True).level is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 119}, "119 steps instead of 120"),
        ({"samples": 64.0 * 119}, "samples"),
        ({"rates": (0.1,) * 60 + (0.101,) * 60}, "learning rate in step 61"),
        ({"losses": (*ORIGINAL.losses[:-1], (0.5, 0.5))}, "another number of losses"),
        ({"losses": (*ORIGINAL.losses[:70], (math.nan,), *ORIGINAL.losses[71:])}, "not finite in step 71"),
    ],
)
@pytest.mark.parametrize("declared", [EXACT, ROUNDING, STATISTICAL])
def test_what_no_level_permits(change: dict[str, Any], says: str, declared: Contract) -> None:
    judged = check(declared, None, ORIGINAL, replace(ORIGINAL, **{"state": "other", **change}), True, SEEDS)
    assert judged.level is None and says in judged.sentence


def test_rounding_may_not_move_the_first_loss() -> None:
    assert check(ROUNDING, None, ORIGINAL, moved(1 + 1e-6), True, SEEDS).level is ROUNDING
    assert check(ROUNDING, None, ORIGINAL, moved(1.002), True, SEEDS).level is None
    assert check(STATISTICAL, None, ORIGINAL, moved(1.002), True, SEEDS).level is STATISTICAL


def test_a_network_that_stops_learning_is_caught() -> None:
    stuck = replace(trace(5, plateau=1.5), batches=ORIGINAL.batches)
    judged = check(STATISTICAL, None, ORIGINAL, stuck, True, SEEDS)
    assert judged.level is None and "outside the spread" in judged.sentence


def test_other_batches_are_another_program_unless_chance_chose_them() -> None:
    other = moved(1 + 1e-6, batches=("x", "y", "z"))
    assert check(ROUNDING, None, ORIGINAL, other, True, SEEDS).level is None
    assert check(EXACT, STATISTICAL, ORIGINAL, other, True, SEEDS).level is STATISTICAL


def test_without_other_seeds_or_steps_nothing_is_claimed() -> None:
    assert check(STATISTICAL, None, ORIGINAL, moved(1.001), True, []).level is None
    short = trace(steps=10)
    assert check(STATISTICAL, None, short, replace(short, state="x"), True, SEEDS).level is None


def test_a_program_that_differs_from_itself_cannot_be_proved_exact() -> None:
    judged = check(EXACT, None, ORIGINAL, moved(1 + 1e-7), False, SEEDS)
    assert judged.level is STATISTICAL


def test_the_first_non_finite_step_is_named() -> None:
    assert first_non_finite(ORIGINAL) is None
    assert first_non_finite(replace(ORIGINAL, losses=((1.0,), (math.inf,)))) == 2
    assert same_bits(ORIGINAL, trace()) and not same_bits(ORIGINAL, moved(1.0))
