"""Reports how far a fill of the sample cache has come, and logs what became of a data set."""

from __future__ import annotations

import logging
from collections.abc import Callable

# A program that sends its own log to the screen must not find ours in it.
log = logging.getLogger("overdrive")
log.propagate = False
log.addHandler(logging.NullHandler())

# Set by a trial, whose watchdog would take a long fill for a hang: (samples done, samples in all).
on_progress: Callable[[int, int], None] | None = None


def progress(done: int, total: int) -> None:
    """Report that a fill goes on."""
    if on_progress is not None:
        on_progress(done, total)
