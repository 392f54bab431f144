"""Wrong maths is caught at every level that promises to, and what is harmless passes. (About 2 minutes on one core.)

The full table, with 20 repetitions under other seeds, is made by `benchmarks/zoo.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.trial_spec import TrialSpec
from tests.zoo.harness import InProcess
from tests.zoo.specimen import Specimen
from tests.zoo.table import DEFECTS, HARMLESS, Cases, must_catch, must_pass

EXACT, ROUNDING, STATISTICAL = Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL
# That a run under a seed of a harmless technique is the original's own is seen at the stricter levels.
PASSING: Cases = [
    (kind, level) for kind, level in must_pass(HARMLESS) if level is not STATISTICAL or kind.contract is STATISTICAL
]
# These take all runs of an arm at the statistical level, 5 seconds each. `make test` has of wrong data, gradients,
# optimizers and models one, and of harmless ones one.
ALL_RUNS = {
    *("gradient_noise_of_thirty_percent", "gradient_noise_of_ten_percent", "loss_averaged_over_the_wrong_dimension"),
    *("loss_scaling_not_undone", "momentum_less", "rate_halved_in_secret", "rate_a_quarter_off_in_secret"),
    *("rate_a_tenth_off_in_secret", "batch_norm_frozen", "pooling_by_average", "dropout_scaled_wrong"),
    *("evaluation_results_wrong", "images_in_16_bits", "other_initial_weights", "noise_of_a_thousandth", "bf16"),
    "class_lost",
}
# What is so wrong that it is caught at `statistical` is seen at `rounding` in `make test-long` only, where `make test`
# catches it at `statistical`: there each of the two levels has some thirty others. At `exact`, where one bit is enough,
# all that is caught at another level is: `make test` has of activations, gradients, weights, states and steps one.
COARSE = {kind for kind, level in must_catch(DEFECTS) if level is STATISTICAL}
AT_EXACT = {
    *("activation_leaks", "gradient_noise", "weights_in_16_bits", "state_stale", "step_deferred", "clipping_lost"),
}


def is_long(kind: type[Specimen], level: Contract) -> bool:
    if level is STATISTICAL:
        return kind.name in ALL_RUNS
    if level is EXACT and kind.contract is not EXACT:
        return kind.name not in AT_EXACT
    return kind in COARSE and kind.name not in ALL_RUNS


def without_long(cases: Cases) -> list[Any]:
    return [
        pytest.param(kind, level, marks=pytest.mark.long) if is_long(kind, level) else (kind, level)
        for kind, level in cases
    ]


@pytest.fixture(scope="module")
def provers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, InProcess]:
    return {name: InProcess(name, tmp_path_factory.mktemp(name)) for name in ("images", "rows")}


def named(value: object) -> str | None:
    return value.name if isinstance(value, type) and issubclass(value, Specimen) else None


@pytest.mark.parametrize(("kind", "level"), without_long(must_catch(DEFECTS)), ids=named)
@pytest.mark.fault(19, 20)
def test_a_defect_is_caught(kind: type[Specimen], level: Contract, provers: Mapping[str, InProcess]) -> None:
    check = provers[kind.program].judged(kind.name, level)
    assert check.level is None
    assert "broke off" not in check.sentence, "it was the test that failed, not the proof that caught it"
    statistical = check.statistical
    if statistical is not None and statistical.equivalent is None:
        p = statistical.products.differences[0].p
        assert p is not None and p < 0.05, "not established for want of runs is not caught"


@pytest.mark.parametrize(("kind", "level"), without_long(PASSING), ids=named)
@pytest.mark.fault(19)
def test_a_harmless_technique_passes(kind: type[Specimen], level: Contract, provers: Mapping[str, InProcess]) -> None:
    check = provers[kind.program].judged(kind.name, level)
    if level is STATISTICAL:  # that 16 seeds establish it happens in nine of ten cases (evidence/statistical.py)
        assert check.statistical and check.statistical.equivalent is not False, check.sentence
    else:
        assert check.level is level, check.sentence


@pytest.mark.parametrize(
    "name", ["gradient_noise", "rate_off_in_secret", "evaluation_results_wrong", "weights_in_16_bits"]
)
def test_three_replayed_states_catch_what_a_statistical_proof_cannot(
    name: str, provers: Mapping[str, InProcess]
) -> None:
    """What promises more than a statistical plan that it joins is asked for that first."""
    prover = provers["images"]
    prover._runs.same_inputs(prover.plain, prover.plain)  # tells when something happens
    new = TrialSpec(prover.plain.program, ((name, {}),))
    assert prover.few_states(prover.plain, new).level is None
    harmless = TrialSpec(prover.plain.program, (("convolution_by_matrix_product", {}),))
    assert prover.few_states(prover.plain, harmless).level is ROUNDING


def test_samples_that_are_kept_are_no_other_inputs(provers: Mapping[str, InProcess]) -> None:
    """Their transforms are modules, which are called no more; the model is given the same."""
    check = provers["rows"].judged("sample_cache", EXACT)
    assert check.level is EXACT, check.sentence


@pytest.mark.parametrize("kind", [each for each in HARMLESS if each.contract is not EXACT], ids=named)
def test_what_is_harmless_at_one_level_is_caught_at_a_stricter(
    kind: type[Specimen], provers: Mapping[str, InProcess]
) -> None:
    stricter = EXACT if kind.contract is ROUNDING else ROUNDING
    level = provers[kind.program].judged(kind.name, stricter).level
    if kind.name == "two_threads" and level is EXACT:
        pytest.skip("two threads come to the same bits on this machine")
    assert level is None


@pytest.mark.parametrize("name", ["images", "rows"])
def test_the_programs_equal_themselves_and_are_taught_in_fp64(name: str, provers: Mapping[str, InProcess]) -> None:
    prover = provers[name]
    assert prover.repeats(prover.plain).level is EXACT
    check = prover.rounding(prover.plain, prover.plain)
    assert check.level is ROUNDING
    assert check.rounding and check.rounding.reference == "fp64" and check.rounding.states == 32


def test_the_zoo_is_as_large_as_promised() -> None:
    assert len(DEFECTS) >= 25 and len(HARMLESS) >= 10
    assert sum("A fake speedup" in (kind.__doc__ or "") for kind in DEFECTS) >= 4
