"""The bound of a share is exact, and holds as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.evidence.binomial import at_least, at_most, samples_needed


def test_it_is_clopper_and_pearsons() -> None:
    assert at_most(0, 100) == pytest.approx(0.0295, abs=1e-4)  # 1 - 0.05 ** (1 / 100)
    assert at_most(3, 100) == pytest.approx(0.0757, abs=1e-4)  # of a table; so are the next
    assert at_most(1, 10) == pytest.approx(0.3942, abs=1e-4)
    assert at_least(9, 10) == pytest.approx(1 - 0.3942, abs=1e-4)
    assert at_most(10, 10) == 1.0 and at_least(0, 10) == 0.0


def test_a_share_at_the_margin_is_accepted_in_one_of_twenty() -> None:
    drawn = np.random.default_rng(0).binomial(2000, 0.01, size=1000)
    accepted = np.mean([at_most(int(each), 2000) <= 0.01 for each in drawn])
    assert 0.02 < accepted < 0.06


@pytest.mark.parametrize("other", [0.0, 0.002, 0.005, 0.01])
def test_as_many_samples_as_it_says_are_enough(other: float) -> None:
    needed = samples_needed(0.02, other)
    assert at_most(math.ceil(other * needed), needed) <= 0.02
    assert other or (needed == 149 and samples_needed(0.01) == 299)
