"""How long a run goes without a sign of life, learned from the run itself."""

from __future__ import annotations

from collections import deque
from statistics import median

_TIMES_A_STEP = 10
_TIMES_A_PAUSE = 3  # an evaluation, a checkpoint or an epoch's beginning that takes that much longer than any before
_RECENT = 32  # steps of which the usual one is the median


class Pauses:
    """Looked at by a clock now and then. Nothing counts before the first step: what comes before it may take any time.

    Attributes:
        bound: seconds without a sign of life after which it stands.
    """

    def __init__(self, least: float) -> None:
        """`least`: seconds that nobody calls a hang."""
        self.bound = least
        self._least = least
        self._longest = 0.0
        self._steps = self._signs = 0
        self._alive_at = self._stepped_at = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def look(self, now: float, steps: int, signs: int) -> float:
        """Returns how long there has been no sign of life.

        Args:
            now: seconds, on a clock that nobody sets.
            steps: made so far.
            signs: of life other than steps so far: batches fetched.
        """
        if not steps:
            return 0.0
        if steps == self._steps and signs == self._signs:
            return now - self._alive_at
        if self._steps:
            self._longest = max(self._longest, now - self._alive_at)
            if steps > self._steps:
                self._recent.append((now - self._stepped_at) / (steps - self._steps))
        if steps > self._steps:
            self._stepped_at = now
        self._steps, self._signs, self._alive_at = steps, signs, now
        usual = median(self._recent) if self._recent else 0.0
        self.bound = max(self._least, _TIMES_A_STEP * usual, _TIMES_A_PAUSE * self._longest)
        return 0.0

    def stood_still(self, seconds: float) -> None:
        """The whole process did (it was stopped, or no thread got its turn): that is no pause of the program's."""
        self._alive_at += seconds
        self._stepped_at += seconds
