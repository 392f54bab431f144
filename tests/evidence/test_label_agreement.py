"""The bound of a share that differs is exact, and holds as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

from overdrive.evidence.label_agreement import agreement, fewest


def test_it_is_clopper_and_pearsons() -> None:
    assert agreement(299, 0, 0.01).holds and not agreement(298, 0, 0.01).holds and fewest(0.01) == 299
    assert agreement(10, 1, 0.5).bound == pytest.approx(0.3942, abs=1e-4)  # of a table
    assert agreement(5, 5, 0.5).bound == 1.0


def test_a_share_at_the_margin_is_accepted_in_one_of_twenty() -> None:
    drawn = np.random.default_rng(0).binomial(2000, 0.01, size=2000)
    accepted = np.mean([agreement(2000, int(each), 0.01).holds for each in drawn])
    assert 0.02 < accepted < 0.055


def test_labels_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="cannot differ"):
        agreement(3, 4, 0.01)
