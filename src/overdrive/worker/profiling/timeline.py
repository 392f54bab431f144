"""Splits the wall clock of the program's own thread among the phases of a step, by what passes the seams.

At every moment exactly one phase runs: the innermost that has begun. So phases add up to the time that went by,
and nothing counts twice: an `.item()` in a loss function is synchronisation, not forward. Which seams begin and end
which phase is for each framework's package to say (`worker.profiling.NAME.phases`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

BETWEEN = "between"  # what no seam sees: the loss, metrics, printing, batches made by hand
GRAPH = "graph"  # a call of a compiled function that trains, which has more than one of these in it
WATCHING = "watching"  # our own looking after steps, where that takes time
PHASES = (
    "data",
    "copy",
    "forward",
    "evaluation",
    "backward",
    "optimizer",
    "synchronisation",
    GRAPH,
    WATCHING,
    BETWEEN,
)
PHASE = "overdrive phase: "  # how a phase is marked in a recording


class Timeline:
    """Costs about 1 µs a phase while it counts, and less while it does not.

    `device_waits`: where there is a GPU; called before each look at the clock, so that its work falls to the phase that
    ordered it.
    """

    def __init__(self, device_waits: Callable[[], None] | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.looks = dict.fromkeys(PHASES, 0)  # at the clock, each of which ended a phase or broke into it
        self.phase = BETWEEN
        self.on_begin: Callable[[str], Any] | None = None
        self.on_end: Callable[[Any], None] | None = None
        self._wait = device_waits
        self._stack: list[tuple[str, Any]] = []
        self._thread = threading.get_ident()
        self._since = 0.0
        self._began = 0.0
        self._before = dict(self.seconds), dict(self.looks)
        self.total = 0.0
        self.counts = False

    @property
    def waits(self) -> bool:
        """Whether a look at the clock waits for a device."""
        return self._wait is not None

    @property
    def heeded(self) -> bool:
        """Whether phases are timed, or marked in a recording."""
        return self.counts or self.on_begin is not None

    def start(self) -> None:
        if self._wait:
            self._wait()
        self._before = dict(self.seconds), dict(self.looks)
        self._since = self._began = time.perf_counter()
        self.counts = True

    def start_again(self) -> None:
        """What has been counted since the start was for warming up."""
        if self.counts:
            self.seconds, self.looks = self._before
            self.start()

    def stop(self) -> None:
        """Phases that have begun stay so: a block may end within one."""
        self._count()
        if self.counts:
            self.total += self._since - self._began
        self.counts = False

    def forget(self) -> None:
        """No phase is open: those that are will not be told to end."""
        self._stack, self.phase = [], BETWEEN

    def move(self) -> None:
        """To this thread, where no phase is open in the other: a server answers in threads of its own."""
        if not self._stack:
            self._thread = threading.get_ident()

    def mark_with(self, begin: Callable[[str], Any] | None, end: Callable[[Any], None] | None) -> None:
        """From here on each phase is marked in a recording; marks that are still open stay their owner's affair."""
        self.on_begin, self.on_end = begin, end
        self._stack = [(phase, None) for phase, _ in self._stack]

    def _count(self) -> None:
        if self.counts:
            if self._wait:
                self._wait()
            now = time.perf_counter()
            self.seconds[self.phase] += now - self._since
            self.looks[self.phase] += 1
            self._since = now

    def begin(self, phase: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self._count()
        self.phase = phase
        self._stack.append((phase, self.on_begin(phase) if self.on_begin else None))

    def end(self, phase: str) -> None:
        """Ends the innermost such phase, and what was left open within it by an error that the program caught."""
        if threading.get_ident() != self._thread:
            return
        innermost = self._stack[-1][0] if self._stack else BETWEEN
        if innermost != phase and all(each != phase for each, _ in self._stack):
            return
        self._count()
        while self._stack:
            last, mark = self._stack.pop()
            if mark is not None and self.on_end:
                self.on_end(mark)
            if last == phase:
                break
        self.phase = self._stack[-1][0] if self._stack else BETWEEN

    def within(self, phase: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.begin(phase)
        try:
            return call(*args, **kwargs)
        finally:
            self.end(phase)
