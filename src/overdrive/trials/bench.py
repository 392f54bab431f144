"""Runs trials that nobody times, one after the other or several at once, and keeps what they came to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from overdrive.trials.host import House, Trial
from overdrive.trials.order import Ending, Order, Trace, TrialOver

_CHUNK, _FIRST_CHUNK = 400, 16  # steps between two reports of a trial, at most and at first ...
_CHUNK_SECONDS = 2.0  # ... and about so long, since a trial that is late is ended between two of them


class Bench:
    """What the trials of one proof share.

    Attributes:
        until: when (time.monotonic()) trials end as "late", whatever is missing.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self.until = math.inf
        self.seconds = 5.0  # of the longest trial under the program's own seed so far
        self._traces: dict[str, Trace | Ending] = {}

    def known(self, name: str, run: Callable[[], Trace | Ending]) -> Trace | Ending:
        if name not in self._traces:
            trace = run()
            if isinstance(trace, Ending) and trace.kind == "late":
                return trace  # another time there may be more of it
            self._traces[name] = trace
        return self._traces[name]

    def forget(self, word: str) -> None:
        """Drop the traces whose names begin with it."""
        self._traces = {name: trace for name, trace in self._traces.items() if not name.startswith(word)}

    def run(self, order: Order, steps: int, output: list[str] | None = None) -> Trace | Ending:
        """The program's first `steps` steps, or all of it where it makes fewer."""
        began = time.monotonic()
        trial = Trial(self.house, order)
        chunk = _FIRST_CHUNK
        try:
            trial.first_step(self.until)
            while trial.step < steps:
                if time.monotonic() > self.until:
                    return Ending("late", "the budget was used up")
                block = trial.run(min(chunk, steps - trial.step))
                chunk = max(1, min(_CHUNK, round(_CHUNK_SECONDS * block.steps / max(block.seconds, 1e-6))))
            return trial.trace()
        except TrialOver as over:
            if over.ending.kind == "ended" and over.report.get("steps"):
                return Trace.from_report(over.report)
            return over.ending
        finally:
            if output is not None:
                output.append(trial.output_tail(1 << 20))
            trial.stop()
            if not order.seed:
                self.seconds = max(self.seconds, time.monotonic() - began)
