"""How long it is from one snapshot to the next."""

from __future__ import annotations

import math

FIRST = 30.0  # seconds until the first, while it is not known what one costs, nor whether it can be taken
MTBF = 86_400.0  # seconds: once a day, where nobody says how often such runs end before they are done
LONGEST = 1800.0  # seconds that a failure costs at the most, beside what it takes to come back
BEFORE_END = 120.0  # seconds before the end of a grant of known length that one is taken, to be on disk by then
MOST_LOST = 3  # ranks, one after another, without a new snapshot in between; one more ends the run
_MOST_SHARE = 0.005  # of the run that snapshots may take, however often it fails


class SnapshotInterval:
    """As long as was asked for, or else what costs least by Young's formula.

    With a snapshot that costs C seconds and a failure every M seconds, C / T of the run goes into snapshots and T / 2 M
    is lost: least at T = sqrt(2 C M) (Young, CACM 17, 1974; Daly's terms of higher order are below the error of M).
    """

    def __init__(self, every: float | None, mtbf: float = MTBF, end: float = math.inf) -> None:
        """
        Args:
            every: seconds between two snapshots, whatever they cost; None: found out.
            mtbf: mean time between failures, in seconds.
            end: when the run will be ended, where that is known; on the clock that `due_after` is asked by.
        """
        self._every, self._mtbf, self._last = every, mtbf, end - BEFORE_END
        self.seconds = FIRST if every is None else every

    def took(self, cost: float) -> None:
        """A snapshot has cost so many seconds of the run."""
        if self._every is None:
            cost = max(cost, 1e-3)
            self.seconds = max(cost / _MOST_SHARE, min(LONGEST, math.sqrt(2 * cost * self._mtbf)))

    def due_after(self, now: float) -> float:
        """When the next snapshot is due: not before the last that there is time for is missed."""
        due = now + self.seconds
        return self._last if now < self._last < due else due
