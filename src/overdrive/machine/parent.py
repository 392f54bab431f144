"""What becomes of a process when the one that started it is gone."""

from __future__ import annotations

import contextlib
import ctypes

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """From now on the kernel sends this process such a signal when the thread that started it ends (on Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
