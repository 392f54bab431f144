"""The number that a program itself prints or returns, after whole runs of it: with a plan, and as it is.

Of programs that only call their model. Nothing is drawn at random but what such a program draws itself, under its own
seed, so one run of each is compared; programs that train are compared over seeds (`proof.statistical`).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from overdrive.core.metric import Metric
from overdrive.core.proof_record import MetricRecord
from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.agreement import MARGIN
from overdrive.evidence.equivalence import Check
from overdrive.proof.runs import ALL, ProofRuns, broke_off

_SHARE = 1 / 3  # of the time that there is: a run under a plan takes as long, and one is to be found first


class WholeRunsProof:
    """The program's own number is found once: a tune begins with it, since it tells how long a whole run takes."""

    def __init__(self, runs: ProofRuns, metric: Metric, margin: float | None) -> None:
        """`margin`: the difference that is allowed, in the metric's unit; None: the share that answers are allowed."""
        self._runs = runs
        self._metric = metric
        self._margin = margin
        self._own: float | None = None
        self._seconds = 0.0  # of its run

    @property
    def wanted(self) -> bool:
        return not self._metric.is_loss

    def added(self, check: Check, plain: TrialSpec, new: TrialSpec) -> Check:
        """The check of `new` against `plain`, which holds, and of this number too."""
        if not self.wanted or check.level is None:
            return check
        if lacking := self.lacking(plain):
            return lacking
        assert self._own is not None
        self._runs.stage(f"proof: {self._metric.name} after a whole run")
        its = self._number(new)
        if isinstance(its, ExitReason):
            return broke_off(its, its)
        record = self._judged(self._own, its)
        sentence = f"{check.sentence}; {_told(record)}"
        return replace(check, level=check.level if record.holds else None, sentence=sentence, metric=record)

    def lacking(self, plain: TrialSpec) -> Check | None:
        """The check that fails for want of the program's own number; None where it is there, or not wanted."""
        if self.wanted and self._own is None:
            self._runs.stage(f"the program's own {self._metric.name}, after a whole run")
            began, untimed = time.monotonic(), self._runs.untimed
            until = untimed.until
            untimed.until = min(until, began + _SHARE * (until - began))
            own = self._number(plain)
            untimed.until = until
            if isinstance(own, ExitReason):
                return broke_off(own, own)
            if not math.isfinite(own):
                return Check(None, self._metric.missing())
            self._own, self._seconds = own, time.monotonic() - began
        return None

    def seconds_needed(self) -> float:
        """For the run under a plan, which is about as long as the program's own."""
        return self._seconds

    def _number(self, spec: TrialSpec) -> float | ExitReason:
        output: list[str] = []
        trace = self._runs.untimed.run(replace(spec, returned=self._metric.function), ALL, output)
        if isinstance(trace, ExitReason):
            return trace
        return self._metric.value((), output[0] if output else "", trace.returned)

    def _judged(self, own: float, its: float) -> MetricRecord:
        margin = MARGIN * abs(own) if self._margin is None else self._margin
        rule = f"{MARGIN:.0%} of the program's own" if self._margin is None else "as was asked for"
        holds = abs(its - own) <= margin  # not a number: no
        return MetricRecord(self._metric.name, holds, own, its if math.isfinite(its) else None, margin, rule)


def _told(record: MetricRecord) -> str:
    found = "no number" if record.candidate is None else f"{record.candidate:.6g}"
    within = "within" if record.holds else "which is more than"
    return (
        f"{record.name} after a whole run is {found} instead of {record.original:.6g}, "
        f"{within} {record.margin:.3g} ({record.margin_rule})"
    )
