"""The proof from digest logs catches what is wrong, and lets pass what is not."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.records import StepRecord, Trace
from overdrive.evidence.equivalence import (
    differing_invariant,
    first_non_finite,
    judged_exact,
    same_bits,
    screened,
    step_losses,
    too_short_to_look,
)
from overdrive.evidence.invariants import compared

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


def moved(factor: float, **changes: Any) -> Trace:
    losses = tuple((step[0] * factor,) for step in ORIGINAL.losses)
    return replace(ORIGINAL, losses=losses, state="other", **changes)


SEEDS = [step_losses(trace(seed)) for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 119}, "119 steps instead of 120"),
        ({"samples": 64.0 * 119}, "samples"),
        ({"rates": (0.1,) * 60 + (0.101,) * 60}, "learning rate in step 61"),
        ({"losses": (*ORIGINAL.losses[:-1], (0.5, 0.5))}, "another number of losses"),
    ],
)
def test_a_duel_shows_what_no_level_permits(change: dict[str, Any], says: str) -> None:
    assert says in (differing_invariant(ORIGINAL, replace(ORIGINAL, **change)) or "")
    assert differing_invariant(ORIGINAL, ORIGINAL) is None


def test_a_first_look_catches_a_network_that_stops_learning() -> None:
    stuck = screened(ORIGINAL, trace(5, plateau=1.5), SEEDS)
    assert stuck.level is None and "outside the spread" in stuck.sentence
    fine = screened(ORIGINAL, moved(1.002), SEEDS)
    assert fine.level is STATISTICAL and fine.proxy


def test_without_other_seeds_or_steps_nothing_is_claimed() -> None:
    assert screened(ORIGINAL, moved(1.001), []).level is None
    short = trace(steps=10)
    assert screened(short, replace(short, state="x"), SEEDS).level is None
    undecided = too_short_to_look(ORIGINAL, short)
    assert undecided is not None and undecided.proxy and "the proof of the whole plan decides" in undecided.sentence
    assert too_short_to_look(ORIGINAL, ORIGINAL) is None


def test_the_first_non_finite_step_is_named() -> None:
    assert first_non_finite(ORIGINAL) is None
    assert first_non_finite(replace(ORIGINAL, losses=((1.0,), (math.inf,)))) == 2
    assert same_bits(ORIGINAL, trace()) and not same_bits(ORIGINAL, moved(1.0))


SKETCH = (0.3, 0.1, 0.2)


def written(steps: int = 40, change: tuple[int, str, Any] | None = None, **fields: Any) -> Trace:
    """A trace with a digest log; `change`: from this step on, this part of an entry is another."""
    parts = ("batches", "samples", "calls", "settings", "parameters", "buffers", "optimizer_state", "random_states")
    digests: list[dict[str, Any]] = [
        {part: f"{part} {step}" for part in parts} | {"inputs": [[step, *SKETCH]], "evaluation": [[step, *SKETCH]]}
        for step in range(1, steps + 1)
    ]
    if change:
        for entry in digests[change[0] - 1 :]:
            entry[change[1]] = change[2]
    whole = replace(
        trace(steps=steps),
        digests=tuple(
            StepRecord(**{**each, "inputs": tuple(each["inputs"]), "evaluation": tuple(each["evaluation"])})
            for each in digests
        ),
        trained="2 tensors, 10 scalars",
        state="end" if not change else "other",
    )
    return replace(whole, **fields)


def test_equal_digests_are_exact() -> None:
    judged = judged_exact(written(), written())
    assert judged.level is EXACT and "40 steps" in judged.sentence
    assert all(each.same for each in judged.invariants)
    assert judged.exact and judged.exact.first_difference is None


@pytest.mark.parametrize("part", ["parameters", "buffers", "optimizer_state", "random_states"])
def test_one_other_hash_is_not_exact(part: str) -> None:
    judged = judged_exact(written(), written(change=(17, part, "x")))
    assert judged.level is None and judged.sentence == f"other {part.replace('_', ' ')} in step 17"


def test_one_other_bit_of_a_loss_is_not_exact() -> None:
    one = written()
    losses = (*one.losses[:-1], (math.nextafter(one.losses[-1][0], 9),))
    assert judged_exact(one, replace(one, losses=losses)).sentence == "other losses in step 40"
    assert "different states" in judged_exact(one, replace(one, state="x")).sentence


@pytest.mark.parametrize("level", [EXACT, ROUNDING, STATISTICAL])
@pytest.mark.parametrize(
    ("other", "what"),
    [
        (written(change=(30, "batches", "x")), "batches"),
        (written(change=(30, "inputs", [[0, 0.9, 0.1, 0.2]])), "inputs of the model"),
        (written(change=(30, "inputs", [])), "inputs of the model"),
        (written(change=(30, "calls", "x")), "calls of the model"),
        (written(change=(30, "evaluation", [[0, 0.9, 0.1, 0.2]])), "evaluation data"),
        (written(change=(30, "settings", "x")), "learning rates and weight decay"),
        (written(trained="2 tensors, 9 scalars"), "trained parameters"),
        (written(change=(30, "samples", 1)), "batches"),
        (written(steps=39), "steps"),
    ],
)
def test_what_no_level_permits(level: Contract, other: Trace, what: str) -> None:
    wrong = [each.what for each in compared(written(), other, level) if not each.same]
    assert what in wrong


@pytest.mark.parametrize(
    ("sketch", "alike"),
    [
        ((0.303, 0.1, 0.2), True),
        ((0.307, 0.1, 0.2), True),  # seen of 8-bit images in bf16
        ((0.33, 0.1, 0.2), False),
        ((0.303, 0.107, 0.2), False),
        ((0.303, 0.1, 0.207), False),
    ],
)
def test_a_rounded_batch_is_told_from_another(sketch: tuple[float, ...], alike: bool) -> None:
    other = written(change=(40, "inputs", [[0, *sketch]]))
    assert all(each.same for each in compared(written(), other, STATISTICAL)) is alike


def test_inputs_may_be_rounded_only_where_the_level_permits_it() -> None:
    rounded = written(change=(40, "inputs", [[0, 0.303, 0.1, 0.2]]))
    for level, permitted in ((EXACT, False), (ROUNDING, False), (STATISTICAL, True)):
        assert all(each.same for each in compared(written(), rounded, level)) is permitted


def test_what_the_model_made_itself_is_no_data() -> None:
    """A hidden state, or a generator's picture: it changes with the parameters, so it need not be the same."""
    one = written(change=(40, "inputs", [[1, 0.3]]))
    other = written(change=(40, "inputs", [[2, 0.9]]))
    perturbed = written(change=(40, "inputs", [[3, 0.6]]))
    assert not all(each.same for each in compared(one, other, ROUNDING, one))
    assert all(each.same for each in compared(one, other, ROUNDING, perturbed))


def test_beyond_the_end_of_the_perturbed_run_nothing_more_is_excused() -> None:
    """It may end sooner, by early stopping: then other batches passed as the same after its last step."""
    perturbed = written(steps=20)
    assert all(each.same for each in compared(written(), written(), ROUNDING, perturbed))
    for change, what in (((30, "batches", "other"), "batches"), ((30, "inputs", [[1, 0.3]]), "inputs of the model")):
        told = compared(written(), written(change=change), ROUNDING, perturbed)
        assert [each.what for each in told if not each.same] == [what]
