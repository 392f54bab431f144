"""What is said while a run reads samples before it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from overdrive.worker.saying import errors


class ReadingSamples:
    """Over one line of a terminal, else in a line now and then."""

    _SHORT = 2.0  # seconds that nobody asks about
    _EVERY_ON_TERMINAL, _EVERY = 0.5, 30.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: float | None = None
        self._shown = False  # a line stands on the terminal

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` samples have been read. See `core.progress`."""
        stream, now = errors(), self._clock()
        if stream is None or stream.closed:
            return
        terminal = stream.isatty()
        every = self._EVERY_ON_TERMINAL if terminal else self._EVERY
        if self._told_at is None:
            self._told_at = now + self._SHORT - every
        if not 0 < done < total:
            if self._shown:  # else what stands there is the program's
                print("\r\033[K", end="", file=stream, flush=True)
            self._told_at, self._shown = None, False
        elif now - self._told_at >= every:
            self._told_at, self._shown = now, terminal
            text = f"overdrive: {done:,} of {total:,} samples read"
            print(f"\r{text}\033[K" if terminal else text, end="" if terminal else "\n", file=stream, flush=True)
