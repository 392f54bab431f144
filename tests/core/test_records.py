"""What trials report."""

from __future__ import annotations

import pytest

from overdrive.core.records import ExitReason, TrialOver
from overdrive.insight.profile.measure import CannotProfile, _length
from overdrive.trials.pool import TrialPool


@pytest.mark.parametrize("detail", ["It forks, and trains there", "It forks, and trains there."])
def test_why_a_program_cannot_be_followed_is_one_sentence(detail: str) -> None:
    """`profile` told it without its full stop."""
    over = TrialOver(ExitReason("unwatched", detail))
    assert over.exit_reason.unwatched == "It forks, and trains there."
    with TrialPool() as pool, pytest.raises(CannotProfile, match=r"^It forks, and trains there\.$"):
        _length(pool, over)


def test_other_reasons_are_none() -> None:
    assert not ExitReason("crash", "signal 11").unwatched
