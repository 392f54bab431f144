"""Standard output that a command outlives: with its reader gone, the command still writes what it has found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO


class LastingStream:
    """What cannot be written there is lost, from then on, which standard error is told once.

    Of `overdrive tune train.py | tee log`, Ctrl-C ends `tee` too, and the tune has its plan to write then. A terminal
    may be closed over a tune in the background, a disk be full that only the log lies on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = False

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            act()
        except OSError as error:
            self._lost = True
            with suppress(OSError, ValueError):  # what is in its buffer is written as Python ends, and would fail again
                handle, nowhere = self._stream.fileno(), os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, handle)
                os.close(nowhere)
            if self._stream is not sys.stderr:
                with suppress(OSError):
                    why = error.strerror or type(error).__name__
                    print(f"overdrive: standard output is lost ({why}); the command goes on", file=sys.stderr)
