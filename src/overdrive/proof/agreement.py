"""Level `statistical` for programs that only call their model: both answer the same inputs, sample by sample."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import ReplayRole, TrialSpec
from overdrive.evidence.agreement import MARGIN, judge
from overdrive.evidence.equivalence import Check
from overdrive.proof.runs import ProofRuns, broke_off

_OTHERS = 30  # that the margin allows among the samples that are wanted: half as many are told from it
_MOST_CALLS, _FEWEST_CALLS = 6000, 4
_BEGUN = 24  # calls that an engine begins with, or is calibrated by; of a short program an eighth
_FIRST_LOOK = 4  # of a first look: each so manieth of the calls
_RECORDING = 1.5  # times as long as the call, with what is written


class AgreementProof:
    """Proves by calls with recorded inputs. What the original answered is recorded once, of the first program given."""

    def __init__(self, runs: ProofRuns, tolerance: float | None = None) -> None:
        """`tolerance`: the share of other answers that is allowed."""
        self.step_seconds = runs.facts.step_seconds
        self._runs = runs
        self._margin = MARGIN if tolerance is None else tolerance
        self._folder: Path | None = None
        self._answered: Mapping[str, Any] = {}  # what the run of the original reports

    def compare(self, old: TrialSpec, new: TrialSpec, deadline: float, latest: float | None = None) -> Check:
        """`new` against `old`.

        Args:
            deadline: time.monotonic(); a proof that is not done then has established nothing.
            latest: it may go on until then, if it is told.
        """
        self._runs.untimed.until = min(self._runs.untimed.until, max(deadline, latest or 0.0))
        return self._compared(old, new, 1)

    def screened(self, old: TrialSpec, new: TrialSpec, one: Trace, other: Trace, closer: bool = False) -> Check:
        """A first look at a candidate, over a part of the calls (all: `closer`): what is clearly too far off leaves."""
        check = self._compared(old, new, 1 if closer else _FIRST_LOOK)
        undecided = check.level is None and check.agreement is not None and check.agreement.holds is None
        return replace(check, level=Contract.STATISTICAL, proxy=True) if undecided else check

    def seconds_needed(self, plain: TrialSpec | None = None, gain: float = 1.0, seeds: int = 0) -> float:
        """An estimate for the proof of a whole plan. `seeds`: it has none."""
        runs = self._runs
        each = runs.budget.start + _RECORDING * self._last_call() * self.step_seconds
        return each + (0.0 if self._answered else each) + runs.seconds_for_inputs()

    def seed_curves(self) -> list[list[float]]:
        """Such a program has no losses."""
        return []

    def _compared(self, old: TrialSpec, new: TrialSpec, every: int) -> Check:
        """`every`: of so many recorded calls one is made."""
        runs = self._runs
        inputs = runs.same_inputs(old, new)
        if isinstance(inputs, Check):
            return inputs
        runs.stage("proof: the same inputs, answered by both")
        if reason := self._record(old):
            return reason if isinstance(reason, Check) else Check(None, reason, invariants=inputs)
        steps = tuple(self._answered["states"])[::every]
        trace = self._run(new, "agreement", steps)
        if isinstance(trace, ExitReason):
            return broke_off(trace, trace)
        agreed = judge(trace.replay, self._margin)
        level = Contract.STATISTICAL if agreed.holds else None
        return Check(level, agreed.sentence, invariants=inputs, agreement=agreed.record, left_out=trace.left_out)

    def _record(self, old: TrialSpec) -> str | Check | None:
        """Have the original's calls recorded, once; why that is impossible, or None."""
        if self._answered:
            return None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="answers-", dir=self._runs.untimed.pool.scratch))
        chosen = self._chosen(self._last_call())
        trace = self._run(old, "answers", chosen)
        if isinstance(trace, Trace) and _FEWEST_CALLS < trace.steps < chosen[-1]:
            trace = self._run(old, "answers", self._chosen(trace.steps))  # a short program
        if isinstance(trace, ExitReason):
            return broke_off(trace, trace)
        if len(trace.replay["states"]) < _FEWEST_CALLS:
            return f"only {len(trace.replay['states'])} calls could be recorded"
        self._answered = trace.replay
        return None

    def _run(self, spec: TrialSpec, role: str, steps: tuple[int, ...]) -> Trace | ExitReason:
        replayed = replace(spec, replay=ReplayRole(role, str(self._folder), steps))
        return self._runs.untimed.run(replayed, steps[-1])

    def _chosen(self, last: int) -> tuple[int, ...]:
        """Calls up to the last one, evenly spaced."""
        first = min(_BEGUN, last // 8) + 1
        count = min(self._wanted(), last - first + 1)
        return tuple(sorted({first + round(place * (last - first) / max(1, count - 1)) for place in range(count)}))

    def _wanted(self) -> int:
        """Calls that have so many samples."""
        calls = math.ceil(_OTHERS / self._margin / self._samples_a_call())
        return min(_MOST_CALLS, max(_FEWEST_CALLS, calls))

    def _last_call(self) -> int:
        runs = self._runs
        wanted = max(min(runs.steps, runs.budget.length or runs.steps), _BEGUN + self._wanted())
        left = runs.untimed.until - time.monotonic() - runs.budget.start
        if self.step_seconds and math.isfinite(left):
            wanted = min(wanted, int(max(0.0, left) / 3 / (_RECORDING * self.step_seconds)))
        return max(_BEGUN + _FEWEST_CALLS, min(wanted, runs.budget.length or wanted))

    def _samples_a_call(self) -> float:
        """As the last comparison of inputs has them; before the first, as the control has."""
        counts = [each.samples for each in self._runs.seen if each.samples]
        return max(1.0, sum(counts) / len(counts) if counts else self._runs.facts.samples_per_step)
