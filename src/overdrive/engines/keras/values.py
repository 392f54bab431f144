"""Whether the variables that a graph reads hold what they held, whoever assigned to them and in whatever way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overdrive.seams.keras.internals import array_of, value_of


class Values:
    """Of these variables, as they are now. Some microseconds for each."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._held = [_Held(each) for each in variables]

    def changed(self) -> bool:
        return not all(each.same() for each in self._held)

    def arrays(self) -> list[Any]:
        """What they held."""
        return [each.array for each in self._held]


class _Held:
    """It holds the tensor, so that its memory is nobody else's."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self._take(value_of(variable))

    def _take(self, tensor: Any) -> None:
        self._tensor, self.array = tensor, array_of(tensor)
        self._place = _place(self.array)

    def same(self) -> bool:
        now = value_of(self._variable)
        array = array_of(now)
        if _place(array) == self._place:
            return True
        if not _alike(self.array, array):
            return False
        self._take(now)
        return True


def _place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _alike(one: Any, other: Any) -> bool:
    """In every bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    mine, its = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
    return bool(np.array_equal(mine, its))
