"""Numbers as people read them."""

from __future__ import annotations

import pytest

from overdrive.core.units import clock, listed, noise_told, several


@pytest.mark.parametrize(("number", "told"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1200, "1,200 steps")])
def test_one_is_no_plural(number: int, told: str) -> None:
    assert several(number, "step") == told


def test_a_plural_of_its_own_is_given() -> None:
    assert several(1, "process", "processes") == "1 process"
    assert several(3, "process", "processes") == "3 processes"


@pytest.mark.parametrize(("seconds", "told"), [(0.4, "0:00"), (6.9, "0:06"), (725, "12:05"), (3725, "1:02:05")])
def test_time_that_passes_has_minutes_and_seconds(seconds: float, told: str) -> None:
    assert clock(seconds) == told


@pytest.mark.parametrize(("names", "told"), [("", ""), ("a", "a"), ("ab", "a and b"), ("abc", "a, b and c")])
def test_a_list_has_commas_but_for_the_last(names: str, told: str) -> None:
    assert listed(names) == told


@pytest.mark.parametrize(("share", "told"), [(0.0123, "1.2%"), (-0.0123, "1.2%"), (61.1, "over 100%")])
def test_a_noise_floor_that_says_nothing_is_no_number(share: float, told: str) -> None:
    assert noise_told(share) == told
