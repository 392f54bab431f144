"""Runs trials that nobody times, one after the other or several at once, and keeps what they came to."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

from overdrive.core.records import ExitReason, Trace, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_CHUNK = 400  # steps between two reports of a trial at the most; at first it is one ...
_CHUNK_SECONDS = 2.0  # ... and then about so long, since a trial that is late is ended between two of them


class UntimedRunner:
    """What the trials of one proof share.

    Attributes:
        until: when (time.monotonic()) trials end as "late", whatever is missing.
        given_up: by replay role ("reference", "candidate", ...), seconds that the longest trial would have needed that
            was ended as soon as there was seen to be no time for it; 0: there was none.
    """

    def __init__(self, pool: TrialPool, launcher: Callable[[], Launcher] | None = None) -> None:
        """`launcher`: gives another one than the pool's; asked for each trial, since the first ones tell the pool what
        it may fork."""
        self.pool = pool
        self._launcher = launcher
        self.until = math.inf
        self.given_up: dict[str, float] = defaultdict(float)
        self.seconds = 5.0  # of the longest trial under the program's own seed so far, reference runs aside ...
        self.digests_seconds = (
            5.0  # ... and candidates, whose states are loaded and whose steps are measured one by one
        )
        self._traces: dict[str, Trace | ExitReason] = {}

    def known(self, name: str, run: Callable[[], Trace | ExitReason]) -> Trace | ExitReason:
        if name not in self._traces:
            trace = run()
            if isinstance(trace, ExitReason) and trace.kind == "late":
                return trace  # another time there may be more of it
            self._traces[name] = trace
        return self._traces[name]

    def forget(self, word: str) -> None:
        """Drop the traces whose names begin with it."""
        self._traces = {name: trace for name, trace in self._traces.items() if not name.startswith(word)}

    def run(self, spec: TrialSpec, steps: int, output: list[str] | None = None) -> Trace | ExitReason:
        """The program's first `steps` steps, or all of it where it makes fewer."""
        began = time.monotonic()
        trial = Trial(self.pool, spec, self._launcher() if self._launcher else None)
        chunk = 1
        try:
            trial.first_step(self.until)
            first = time.monotonic()
            while trial.step < steps:
                if time.monotonic() > self.until or self._no_time_for(spec, trial.step, time.monotonic() - first):
                    return ExitReason("late", "the budget was used up")
                block = trial.run(min(chunk, steps - trial.step))
                chunk = max(1, min(_CHUNK, round(_CHUNK_SECONDS * block.steps / max(block.seconds, 1e-6))))
            return trial.trace()
        except TrialOver as over:
            return over.trace or over.exit_reason
        finally:
            if output is not None:
                output.append(trial.output_tail(1 << 20))
            trial.stop()
            took = time.monotonic() - began
            if not spec.seed and (spec.replay is None or spec.replay.role == "candidate"):
                self.seconds = max(self.seconds, took)
            if spec.digests and not spec.seed and spec.replay is None:
                self.digests_seconds = max(self.digests_seconds, took)

    def _no_time_for(self, spec: TrialSpec, done: int, seconds: float) -> bool:
        """Whether there is no time for the chosen steps of a state replay, if each takes as long as those so far.

        Steps in fp64 on a CPU were seen to take 16 times as long as others (convolutions). It is told from the first
        steps, as long as all of them are chosen ones, at the earliest from the second and third.

        Args:
            seconds: since the first of the `done` steps.
        """
        if spec.replay is None:
            return False
        chosen, role = spec.replay.steps, spec.replay.role
        if done < 3 or not set(chosen).issuperset(range(1, done + 1)):
            return False
        needed = seconds / (done - 1) * sum(step > done for step in chosen)
        if time.monotonic() + needed <= self.until:
            return False
        self.given_up[role] = max(self.given_up[role], seconds + needed)
        return True
