"""Counts what a rank exchanges with the others, and adds up how long it stands for that."""

from __future__ import annotations

from overdrive.core.exchanged import Exchanged, kind_of


class Tally:
    """Of one rank, also in parts of its run. Attributes: see `Exchanged`."""

    def __init__(self) -> None:
        self.seconds, self.by_memory = 0.0, False
        self._counts: dict[str, int] = {}

    def count(self, operation: str, size: int) -> None:
        """An exchange of so many bytes begins."""
        kind = kind_of(operation, size)
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def so_far(self) -> Exchanged:
        return Exchanged(self.seconds, dict(self._counts), self.by_memory)
