"""The inputs of a model's first calls, that an engine in fewer bits is calibrated by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overdrive.engines.runtime import Array

_MOST = 256 << 20  # bytes
# Of large batches fewer calls are enough for its ranges. Of pictures of 224 x 224 a call of 16 takes half a second.
_FEWEST, _ROWS = 4, 128


class Gathering:
    """Of one model, by signature."""

    def __init__(self, calls: int) -> None:
        """`calls`: that an engine is calibrated by; 0 where it is by none."""
        self._calls = calls
        self._gathered: dict[Any, list[list[Array]]] = {}

    def enough(self, key: Any, given: Sequence[Array]) -> bool:
        """Whether so many calls of this signature were seen as an engine is calibrated by; this one is counted."""
        if not self._calls:
            return True
        gathered = self._gathered.setdefault(key, [])
        gathered.append([each.copy() for each in given])
        size = sum(each.nbytes for each in gathered[-1]) * (len(gathered) + 1)
        rows = sum(max((len(each) for each in call if each.ndim), default=1) for call in gathered)
        return (len(gathered) >= _FEWEST and rows >= _ROWS) or len(gathered) >= self._calls or size > _MOST

    def taken(self, key: Any, given: Sequence[Array]) -> list[list[Array]]:
        """What an engine is built from: those calls, or where nothing was gathered this one, for its shapes."""
        return self._gathered.pop(key, None) or [list(given)]

    def forget(self) -> None:
        self._gathered.clear()
