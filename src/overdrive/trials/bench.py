"""Runs trials that nobody times, one after the other or several at once, and keeps what they came to."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

from overdrive.trials.host import House, Trial
from overdrive.trials.order import Ending, Order, Trace, TrialOver

_CHUNK = 400  # steps between two reports of a trial at the most; at first it is one ...
_CHUNK_SECONDS = 2.0  # ... and then about so long, since a trial that is late is ended between two of them


class Bench:
    """What the trials of one proof share.

    Attributes:
        until: when (time.monotonic()) trials end as "late", whatever is missing.
        given_up: by part ("teacher", "pupil", ...), seconds that the longest trial would have needed that was ended as
            soon as there was seen to be no time for it; 0: there was none.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self.until = math.inf
        self.given_up: dict[str, float] = defaultdict(float)
        self.seconds = 5.0  # of the longest trial under the program's own seed so far, teachers aside ...
        self.diary_seconds = 5.0  # ... and pupils, whose states are loaded and whose steps are measured one by one
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
        chunk = 1
        try:
            trial.first_step(self.until)
            first = time.monotonic()
            while trial.step < steps:
                if time.monotonic() > self.until or self._no_time_for(order, trial.step, time.monotonic() - first):
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
            took = time.monotonic() - began
            if not order.seed and (order.part is None or order.part.role == "pupil"):
                self.seconds = max(self.seconds, took)
            if not order.seed and order.part is None:
                self.diary_seconds = max(self.diary_seconds, took)

    def _no_time_for(self, order: Order, done: int, seconds: float) -> bool:
        """Whether the chosen steps of a part cannot be made in time, of which each takes as long as those so far.

        Steps in fp64 on a CPU were seen to take 16 times as long as others (convolutions). It is told from the first
        steps, as long as all of them are chosen ones, at the earliest from the second and third.

        Args:
            seconds: since the first of the `done` steps.
        """
        if order.part is None:
            return False
        chosen, role = order.part.steps, order.part.role
        if done < 3 or not set(chosen).issuperset(range(1, done + 1)):
            return False
        needed = seconds / (done - 1) * sum(step > done for step in chosen)
        if time.monotonic() + needed <= self.until:
            return False
        self.given_up[role] = max(self.given_up[role], seconds + needed)
        return True
