"""When an answer is made by the model too, and compared."""

from __future__ import annotations

COMPARED = 2  # calls that both make before an engine answers by itself
EVERY = 512  # afterwards the first, second, fourth, eighth, … and each of so many


class Tally:
    """Of an engine's answers, for all sizes that it answers for. `refused`: why it answers for none any more."""

    def __init__(self) -> None:
        self.refused = ""
        self._answers = 0

    def due(self, every: int = EVERY) -> bool:
        """Whether the model gives the next one too: the first, second, fourth, eighth, … and each of so many."""
        self._answers += 1
        return self._answers & (self._answers - 1) == 0 or self._answers % every == 0
