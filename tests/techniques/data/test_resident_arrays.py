"""Arrays that `fit` was given, held on a device: here the main memory stands in for a GPU's."""

from __future__ import annotations

from typing import Any

import pytest

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from tests.keras_driver import told_by


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What one process on that backend came to."""
    one_thread = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return told_by("tests.techniques.resident_arrays_driver", request.param, "cpu", **one_thread)


def test_batches_are_the_same_to_the_last_bit(seen: dict[str, Any]) -> None:
    plain, held = seen["plain"], seen["held"]
    assert held["left_out"] == {} and held["made"] == 4  # three fits, and validation data
    assert held["losses"] == plain["losses"] and held["recorded"] == plain["recorded"]


def test_several_steps_in_a_call_gather_theirs_too(seen: dict[str, Any]) -> None:
    if seen["backend"] == "torch":
        pytest.skip("Keras allows one step in a call on PyTorch")
    plain, held = seen["plain in threes"], seen["held in threes"]
    assert held["left_out"] == {} and held["made"] == 4
    assert held["losses"] == plain["losses"] and held["recorded"] == plain["recorded"]


@pytest.mark.parametrize(
    ("arm", "reason"),
    [
        ("without a GPU", "there is no GPU at work"),
        ("generator", "other data than arrays of numbers"),
        ("too large", "more than 0 MiB of the GPU's memory"),
    ],
)
def test_what_cannot_be_held_stays_where_it_is(seen: dict[str, Any], arm: str, reason: str) -> None:
    assert reason in seen[arm]["left_out"]["resident_arrays"] and seen[arm]["made"] == 0
    if arm != "generator":
        assert seen[arm]["losses"] == seen["plain"]["losses"]


def test_it_leaves_no_trace(seen: dict[str, Any]) -> None:
    assert seen["after all"] == seen["plain"]


def test_it_says_why_it_cannot_help() -> None:
    technique = catalogue()["resident_arrays"]
    assert "runs on the CPU" in (technique.applies(Facts(framework="keras", fits=True)) or "")
    assert "does not call fit()" in (technique.applies(Facts(framework="keras", device="cuda")) or "")
    assert technique.applies(Facts(framework="keras", device="cuda", fits=True)) is None
