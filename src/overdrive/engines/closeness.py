"""Whether an engine's answer is the model's, but for rounding."""

from __future__ import annotations

import numpy as np

from overdrive.engines.runtime import Array

# The error's root mean square, as a share of the answer's. Engines in fp32 come to 1e-7 to 1e-5, a wrong formula to
# more.
_CLOSE = 1e-4
_CLOSE_EACH = 1e-2  # any single element's
_CLOSE_NARROW = 0.3  # in fewer bits, where a plan's proof says how much is lost: what is worse is no rounding at all
# What is as large, and the same in both, is no measure of the other elements: -1e9 in the place of what a mask forbids.
_MASKED = 1e4


def close(mine: Array, its: Array, narrow: bool = False) -> bool:
    """Whether they differ by rounding. Where the model's has no finite number, the engine's has the same there.

    Args:
        mine: the model's.
        narrow: of an engine in fewer bits, whose labels fall another way now and then: they are the proof's.
    """
    if mine.dtype.kind in "biuOSU":
        return narrow or bool(np.array_equal(mine, its))
    one, other = mine.astype(np.float64), its.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(one[~finite], other[~finite], True):
        return False
    compared = finite & ~((one == other) & (np.abs(one) >= _MASKED))
    if not compared.any():
        return True
    one, other = one[compared], other[compared]
    errors, size = one - other, np.sqrt(np.mean(np.square(one)))
    error = np.sqrt(np.mean(np.square(errors)))
    if narrow:
        return bool(error <= _CLOSE_NARROW * size)
    return bool(error <= _CLOSE * size) and bool(np.abs(errors).max() <= _CLOSE_EACH * size)
