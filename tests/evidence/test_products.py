"""What runs produce besides their loss: what is off is seen, and what is only chance is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from overdrive.core.products import Evaluation, Products
from overdrive.evidence.products import PRINTED, Looked, look, numbers_of, predictions_of
from overdrive.evidence.registration import ArmRun

NAMES = [f"size of parameter {number}" for number in range(30)]


def arms(
    rng: np.random.Generator,
    r: float,
    shift: float = 0.0,
    runs: int = 10,
    names: list[str] = NAMES,
    spread: float = 1.0,
) -> tuple[list[ArmRun], list[ArmRun]]:
    """Two arms of 30 quantities whose seeds agree by `r`; of the candidate, the first is off by `shift`."""
    one = rng.standard_normal((runs, len(names)))
    other = r * one + math.sqrt(1 - r * r) * rng.standard_normal((runs, len(names)))
    other[:, 0] += shift
    return tuple(  # type: ignore[return-value]
        [
            ArmRun(seed, 1.0 + seed + number, numbers=dict(zip(names, 10 + spread * row, strict=True)))
            for seed, row in enumerate(arm)
        ]
        for number, arm in enumerate((one, other))
    )


def shares(r: float, shift: float = 0.0, trials: int = 200) -> tuple[float, float]:
    """How often refused, and how often not called equivalent."""
    rng = np.random.default_rng(3)
    found = [look(*arms(rng, r, shift)) for _ in range(trials)]
    return sum(bool(each.faults) for each in found) / trials, sum(bool(each.doubts) for each in found) / trials


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9, 1.0])
def test_the_program_itself_is_hardly_ever_refused_or_doubted(r: float) -> None:
    refused, doubted = shares(r)
    assert refused <= 0.01 and doubted <= 0.03


@pytest.mark.parametrize("r", [0.0, 0.9])
def test_what_is_no_more_than_excused_hardly_ever_is_either(r: float) -> None:
    assert shares(r, shift=0.25)[1] <= 0.05


def test_two_standard_deviations_are_seen_where_seeds_agree_and_four_where_they_do_not() -> None:
    assert shares(0.9, shift=2.0)[0] >= 0.95
    assert shares(0.0, shift=5.0)[0] >= 0.95


def test_less_than_a_percent_is_not_looked_at_however_close_seeds_are() -> None:
    rng = np.random.default_rng(0)
    assert not look(*arms(rng, 0.9, shift=8.0, spread=1e-3)).doubts
    assert look(*arms(rng, 0.9, shift=80.0, spread=1e-3)).faults


def test_what_is_told_names_the_quantity_and_how_many_were_looked_at() -> None:
    found = look(*arms(np.random.default_rng(0), 0.9, shift=3.0))
    assert found.count == 30 and "size of parameter 0 is" in found.faults[0]
    assert found.differences[0].name == "size of parameter 0"


def test_too_few_pairs_and_runs_without_products_say_nothing() -> None:
    one, other = arms(np.random.default_rng(0), 0.9, shift=9.0)
    assert look(one[:3], other[:3]) == Looked()
    without = [replace(run, numbers={}) for run in one]
    assert look(without, other) == Looked()


def printing(*values: float | None, name: str = "accuracy #, 1, last") -> list[ArmRun]:
    """One run for each; None: it prints nothing."""
    return [
        ArmRun(seed, 1.0 + seed, numbers={} if value is None else {f"{PRINTED}{name}": value})
        for seed, value in enumerate(values)
    ]


OWN = (90.1, 90.9, 90.4, 89.8, 90.6)


def test_one_run_without_a_number_hides_nothing_that_the_others_print() -> None:
    """A candidate whose accuracy falls by 40 points passed, where one run of either arm printed nan."""
    worse = [value - 40 for value in OWN]
    for its, own in (([None, *worse[1:]], OWN), (worse, (None, *OWN[1:]))):
        found = look(printing(*own), printing(*its))
        assert found.faults and "accuracy" in found.faults[0]


def test_a_number_that_the_candidate_lacks_is_missed() -> None:
    once = look(printing(*OWN), printing(None, *OWN[1:]))
    assert not once.faults
    assert "missing or not finite in 1 of its 5 runs and none of the original's" in once.doubts[0]
    assert once.lacked == (f"{PRINTED}accuracy #, 1, last",)
    nothing = look(printing(*OWN), printing(*[None] * 5))
    assert "missing or not finite in 5 of its 5 runs" in nothing.faults[0]


def test_numbers_of_a_line_are_missed_together_and_chance_lines_are_not() -> None:
    one = [replace(run, numbers={**run.numbers, f"{PRINTED}other": 1.0}) for run in printing(*OWN)]
    assert "(and 1 others)" in look(one, printing(*[None] * 5)).faults[0]
    own, its = printing(None, *OWN[1:]), printing(None, None, *OWN[2:])
    found = look(own, its)
    assert not found.faults and not found.doubts and not found.lacked
    assert found.incomparable == 1, "three pairs have it"


def test_a_constant_has_to_stay_what_it_is() -> None:
    """The steps, the learning rate: 100 of them became 60 under every seed, and passed."""
    assert look(printing(*[100.0] * 5), printing(*[100.0] * 5)) == Looked()
    assert look(printing(*[0.1] * 5), printing(*[0.1 * (1 + 1e-7)] * 5)).count == 0
    found = look(printing(*[100.0] * 5), printing(*[60.0] * 5))
    assert "accuracy #, 1, last is off by -40, and the same under all seeds" in found.faults[0]
    assert look(printing(*[0.0] * 5), printing(*[1.0] * 5)).faults
    assert look(printing(*[0.001] * 5), printing(*[0.00101] * 5)).faults


def test_a_result_as_good_as_it_can_be_may_be_a_little_less_once() -> None:
    found = look(printing(*[100.0] * 5), printing(100.0, 100.0, 99.8, 100.0, 100.0))
    assert not found.faults and not found.doubts


def test_the_same_training_must_come_to_the_same_evaluations() -> None:
    one, other = arms(np.random.default_rng(0), 1.0, shift=0.02)
    assert not look(one, other).faults
    same = [replace(run, losses=(2.0, 1.0)) for run in one], [replace(run, losses=(2.0, 1.0)) for run in other]
    assert look(*same).faults == ("it trains the same bit for bit, and size of parameter 0 is another",)


def predicting(rng: np.random.Generator, wrong: float, runs: int = 10, of: int = 400) -> list[ArmRun]:
    """Runs that predict one truth but for a share of their own."""
    truth = np.arange(of) % 5
    rows = np.where(rng.random((runs, of)) < wrong, rng.integers(0, 5, (runs, of)), truth)
    return [ArmRun(i, 1.0, predictions={"last evaluation": row.tolist()}) for i, row in enumerate(rows)]


def test_predictions_farther_from_the_other_seeds_are_refused_whatever_the_pairs_have_in_common() -> None:
    rng = np.random.default_rng(1)
    one = predicting(rng, 0.2)
    assert not look(one, predicting(rng, 0.2)).doubts
    worse = look(one, predicting(rng, 0.4))
    assert worse.faults and "disagreement of predictions" in worse.faults[0]


def test_numbers_of_a_run_are_named_by_what_they_are() -> None:
    evaluation = Evaluation(10, level=1.0, size=2.0, confidence=0.7, entropy=0.5, classes=(0.25, 0.75))
    products = Products((evaluation, evaluation), evaluation, (0, 1), {"size of buffer mean": math.e})
    numbers = numbers_of(products, "epoch 1: accuracy 50\nepoch 2: accuracy 60\ntook 3 s\n")
    assert numbers["confidence (late evaluations)"] == 0.7
    assert numbers["share of class 1 (evaluation of the first batches)"] == 0.75
    assert numbers["mean of outputs (late evaluations)"] == 0.5
    assert numbers["size of buffer mean"] == pytest.approx(1.0)
    assert numbers[f"{PRINTED}epoch #: accuracy #, 2, last"] == 60
    assert numbers[f"{PRINTED}epoch #: accuracy #, 2, mean"] == 55
    assert not any("took" in name for name in numbers)
    assert predictions_of(products) == {"last evaluation": [0, 1]}
    diverged = numbers_of(None, "loss 1\nloss nan\nloss 3\nscore inf\n")
    assert diverged == {f"{PRINTED}loss #, 1, last": 3.0}, "the mean is none"
    assert numbers_of(None, "") == {} and predictions_of(None) == {}
