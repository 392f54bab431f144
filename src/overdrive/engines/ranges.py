"""The values of a call's inputs that an engine was held to. For others the model is asked.

It may raise, where an engine takes another row of a table, or the last one. And NaN is lost in engines: in OpenVINO's
relu, clamp and max_pool (whose answer looks as any other), in ONNX Runtime's max_pool, attention and sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from overdrive.engines.runtime import Array

# By input: the values that its engine is right for, by the graph; None where the graph does not tell, and those count
# that were compared. Inputs that are not in it are without an end.
Bounds = Mapping[int, tuple[float, float] | None]


def finite(arrays: Sequence[Array]) -> bool:
    """Whether all numbers are. Either end of 150,000 takes 12 µs, their sum 62, and `isfinite` 30."""
    return all(math.isfinite(each.max()) and math.isfinite(each.min()) for each in arrays if each.dtype.kind == "f")


class Ranges:
    """Of the inputs of one engine. `ends`: the least and the largest value, by input."""

    def __init__(self, bounds: Bounds, calls: Sequence[Sequence[Array]]) -> None:
        """`calls`: the inputs of those that it was compared with."""
        self.open = True  # those of a further call are compared, and may be taken in
        self.ends = {number: ends or (math.inf, -math.inf) for number, ends in bounds.items()}
        for arrays in calls:
            self.take_in(arrays)

    def outside(self, arrays: Sequence[Array]) -> bool:
        """Whether a value is none of those that were compared."""
        for number, (low, high) in self.ends.items():
            each = arrays[number]
            if each.size and not (each.min() >= low and each.max() <= high):  # nor is NaN
                return True
        return False

    def try_beyond(self, arrays: Sequence[Array], agrees: Callable[[], bool]) -> None:
        """Of a call with values outside of them. Where the engine agrees with the model these are taken in; else it
        keeps to those that it was right for, and is not tried again."""
        if not self.open:
            return
        try:
            self.open = agrees()
        except Exception:  # of the library's
            self.open = False
        if self.open:
            self.take_in(arrays)

    def take_in(self, arrays: Sequence[Array]) -> None:
        for number, (low, high) in self.ends.items():
            each = arrays[number]
            if each.size:
                self.ends[number] = min(low, each.min().item()), max(high, each.max().item())
