"""What a first loss says of the level `rounding`, and where it says nothing."""

from __future__ import annotations

import pytest

from overdrive.core.facts import Facts
from overdrive.core.records import Trace
from overdrive.evidence.first_losses import no_rounding

FP32 = Facts(parameter_dtypes=("torch.float32",))


def trace(*losses: float) -> Trace:
    return Trace(steps=len(losses), losses=tuple((loss,) for loss in losses))


@pytest.mark.parametrize(
    ("other", "off"),
    [
        (2.3, None),
        (2.30001, None),  # as another kernel makes it
        (2.3 + 1.4e-3 * 2.3, "0.0014"),  # as other dropout masks made it
        (float("inf"), "inf"),
        (float("nan"), None),  # said elsewhere
    ],
)
def test_a_first_loss_that_is_far_off_is_no_rounding(other: float, off: str | None) -> None:
    told = no_rounding(FP32, trace(2.3, 1.0), trace(other, 0.2))
    assert told == (off and f"its first loss is off by {off} of its size, which is no rounding")


def test_later_losses_may_be_far_off_and_a_loss_near_zero_is_held_against_its_size_later() -> None:
    assert no_rounding(FP32, trace(2.3, 1.0), trace(2.3, 0.1)) is None
    assert no_rounding(FP32, trace(1e-9, 5.0), trace(3e-9, 5.0)) is None
    assert no_rounding(FP32, trace(0.0, 0.0), trace(0.0, 0.0)) is None


@pytest.mark.parametrize(
    "facts",
    [
        Facts(parameter_dtypes=("torch.bfloat16",)),
        Facts(parameter_dtypes=("torch.float32",), own_autocast=True),
        Facts(parameter_dtypes=("torch.float32",), device="cuda"),
    ],
)
def test_an_original_that_may_compute_in_fewer_bits_is_left_to_the_proof(facts: Facts) -> None:
    assert no_rounding(facts, trace(2.3), trace(2.4)) is None


def test_without_losses_nothing_is_said() -> None:
    assert no_rounding(FP32, trace(), trace()) is None
