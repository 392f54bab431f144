"""What the calls of a model took in a whole run: an observer for `Session`, in bounded memory.

NumPy is imported when the program is over: it may want to be the first to do so.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from overdrive.core.interval import Interval
from overdrive.seams.hub import Seams
from overdrive.worker.call_timer import CallTimer

_BLOCK = 0.5  # seconds, whose calls are drawn again together
_KEPT = 1 << 17  # calls: of more each second block is left out, then three of four, and so on


class CallTimes:
    """Costs a microsecond or two a call. On a GPU it says nothing: a call returns before its answer is there."""

    def __init__(self) -> None:
        self._timer = CallTimer(lambda: None)
        self._blocks: list[array[float]] = []
        self._kept = 0  # calls
        self._one_in, self._number = 1, 0  # blocks that are kept; blocks so far
        self._until = 0.0

    def __call__(self, seams: Seams) -> None:
        self._timer.watch(seams)
        seams.step_ends.subscribe(self._ended)

    def _ended(self, model: Any) -> None:
        now = time.perf_counter()
        if now >= self._until:
            self._close()
            self._until = now + _BLOCK

    def _close(self) -> None:
        taken = self._timer.taken().seconds
        self._number += 1
        if not taken or self._number % self._one_in:
            return
        self._blocks.append(array("d", taken))
        self._kept += len(taken)
        while self._kept > _KEPT and len(self._blocks) > 1:
            self._blocks = self._blocks[1::2]
            self._one_in *= 2
            self._kept = sum(map(len, self._blocks))

    def sentence(self) -> str:
        """p50 and, where there were enough calls to tell, p99; "" of too few calls."""
        import numpy as np

        from overdrive.evidence.latency import FEWEST, HALF, MOST

        self._close()
        if self._kept < 2:
            return ""
        half, most = 1e3 * np.quantile(np.concatenate(self._blocks), (HALF, MOST))
        return f"p50 {half:.3g} ms" + (f", p99 {most:.3g} ms" if self._kept >= FEWEST else "")

    def intervals(self) -> tuple[Interval | None, Interval | None]:
        """p50 and p99 in seconds, with 95 % intervals; None where there are too few."""
        from overdrive.evidence.latency import percentiles

        self._close()
        return percentiles([(0, each) for each in self._blocks])
