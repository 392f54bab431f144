"""Splits the wall clock of the program's own thread among the phases of a step, by what passes the seams.

At every moment exactly one phase runs: the innermost that has begun. So phases add up to the time that went by,
and nothing counts twice: an `.item()` in a loss function is synchronisation, not forward.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams

BETWEEN = "between"  # what no seam sees: the loss, metrics, printing, batches made by hand
PHASES = ("data", "copy", "forward", "evaluation", "backward", "optimizer", "synchronisation", BETWEEN)
# A module that is called in one of these belongs to it.
WITHIN = frozenset(("data", "copy", "forward", "evaluation", "backward", "synchronisation"))

Mark = Callable[[str], Any]  # begins a phase's mark in a recording; what it returns is handed to the unmarker


class Timeline:
    """An observer. Costs about 1 µs a phase while it counts, and less while it does not.

    `device_waits`: where there is a GPU; called before each look at the clock, so that its work falls to the phase that
    ordered it.
    """

    def __init__(self, device_waits: Callable[[], None] | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.phase = BETWEEN
        self.on_begin: Callable[[str], Any] | None = None
        self.on_end: Callable[[Any], None] | None = None
        self._wait = device_waits
        self._stack: list[tuple[str, Any]] = []
        self._thread = threading.get_ident()
        self._since = 0.0
        self._began = 0.0
        self.total = 0.0
        self.counts = False
        self._grad_enabled: Callable[[], bool] = lambda: True

    def __call__(self, seams: Seams) -> None:
        seams.loader_opens.subscribe(lambda _, call: self.within("data", call))
        seams.batch_awaited.subscribe(lambda _, call, *args: self.within("data", call, *args))
        seams.model_called.subscribe(self.called)
        seams.loss_backward.subscribe(self._backward_begins)
        seams.backward_done.subscribe(lambda _: self._end("backward"))
        seams.step_begins.subscribe(self.step_begins)
        seams.step_ends.subscribe(self.step_ends)
        self.transfers(seams)

    def transfers(self, seams: Seams) -> None:
        """Subscribe to copies and reads only."""
        # Only where a read waits for something: Adam alone reads 2 numbers a parameter on a CPU, and passing the seam
        # for each took a quarter of a step of 3.5 ms. There, reads are told from a recording.
        torch = sys.modules.get("torch")
        if torch is not None:
            self._grad_enabled = torch.is_grad_enabled
        if self._wait:
            seams.scalar_read.subscribe(self._read)
            seams.tensor_moved.subscribe(self._moved)

    def step_begins(self, optimizer: Any) -> None:
        self._begin("optimizer")

    def step_ends(self, optimizer: Any) -> None:
        self._end("optimizer")

    def start(self) -> None:
        if self._wait:
            self._wait()
        self._since = self._began = time.perf_counter()
        self.counts = True

    def stop(self) -> None:
        """Phases that have begun stay so: a block may end within one."""
        self._count()
        if self.counts:
            self.total += self._since - self._began
        self.counts = False

    def forget(self) -> None:
        """No phase is open: those that are will not be told to end."""
        self._stack, self.phase = [], BETWEEN

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
            self._since = now

    def _begin(self, phase: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self._count()
        self.phase = phase
        self._stack.append((phase, self.on_begin(phase) if self.on_begin else None))

    def _end(self, phase: str) -> None:
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

    def _backward_begins(self, loss: Any) -> Any:
        if self.phase != "backward":  # one call may send several losses
            self._begin("backward")
        return loss

    def called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        if self.phase in WITHIN:  # transforms of a data set may be modules, too
            return call(*args, **kwargs)
        return self.within("forward" if self._grad_enabled() else "evaluation", call, *args, **kwargs)

    def _read(self, tensor: Any, call: Any) -> Any:
        return self.within("synchronisation", call)

    def _moved(self, tensor: Any, call: Any, device: Any) -> Any:
        return self.within("copy", call, device)

    def within(self, phase: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._begin(phase)
        try:
            return call(*args, **kwargs)
        finally:
            self._end(phase)
