"""Level `statistical` for programs that only call their model: both answer the same inputs, sample by sample."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from overdrive.core.contract import Contract
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import ReplayRole, TrialSpec
from overdrive.evidence.agreement import MARGIN, judge
from overdrive.evidence.binomial import samples_needed
from overdrive.evidence.equivalence import Check
from overdrive.proof.runs import ProofRuns, broke_off

_OTHERS = 30  # that the margin allows among the samples that are wanted: half as many are told from it
_MOST_CALLS, _FEWEST_CALLS = 6000, 4
_BEGUN = 24  # calls that an engine begins with, or is calibrated by; of a short program an eighth ...
_BEGUN_AT_LEAST = 12  # ... but so many, where enough are left: of large batches eight give an engine its ranges
_RECORDING, _RECORDING_SECONDS = 1.5, 0.15  # times as long as the call, with what is written; but no more than that
_SHARE = 0.6  # of the time for a proof to its first look that recording may take: candidates answer sooner, as a rule
_ENOUGH = 2  # times the samples that tell if none differs: these are recorded all the same, where there is time at all
_NO_SHARE = "--margin is the share of answers that may differ here, which is below 1 (0.02, say)"


class AgreementProof:
    """Proves by calls with recorded inputs. What the original answered is recorded once, of the first program given."""

    def __init__(self, runs: ProofRuns, tolerance: float | None = None) -> None:
        """`tolerance`: the share of other answers that is allowed."""
        self.step_seconds = runs.facts.step_seconds
        self._runs = runs
        self._folder: Path | None = None
        self._recorded: Trace | None = None  # the run of the original
        # Why nothing can be proved by what is recorded, if so.
        self.impossible = _NO_SHARE if tolerance is not None and tolerance >= 1 else ""
        self._margin = MARGIN if tolerance is None or self.impossible else tolerance

    def compare(self, old: TrialSpec, new: TrialSpec, deadline: float, latest: float | None = None) -> Check:
        """`new` against `old`.

        Args:
            deadline: time.monotonic(); a proof that is not done then has established nothing.
            latest: it may go on until then, if it is told.
        """
        self._runs.untimed.until = min(self._runs.untimed.until, max(deadline, latest or 0.0))
        return self._compared(old, new)

    def screened(self, old: TrialSpec, new: TrialSpec, one: Trace, other: Trace, closer: bool = False) -> Check:
        """A candidate, over all calls: to compare a part of them takes as long, since all of them are made."""
        return self._compared(old, new)

    def seconds_needed(self, plain: TrialSpec | None = None, gain: float = 1.0, seeds: int = 0) -> float:
        """An estimate for the proof of a whole plan. `seeds`: it has none."""
        start, calls = self._runs.budget.start, self._last_call() * self._call_seconds()
        recording = start + calls if self._recorded is None else 0.0
        return recording + start + calls / max(1.0, gain) + self._runs.seconds_for_what_was_made()

    def seed_curves(self) -> list[list[float]]:
        """Such a program has no losses."""
        return []

    def _compared(self, old: TrialSpec, new: TrialSpec) -> Check:
        runs = self._runs
        runs.stage("proof: the same inputs, answered by both")
        if reason := self._record(old):
            return reason if isinstance(reason, Check) else Check(None, reason)
        assert self._recorded is not None
        trace = self._run(new, "agreement", tuple(self._recorded.replay["states"]))
        if isinstance(trace, ExitReason):
            return broke_off(trace, trace)
        inputs = runs.same_inputs_in(self._recorded, trace, old)
        if isinstance(inputs, Check):
            return inputs
        if refused := self._other_inputs(trace, old):
            return replace(refused, invariants=inputs)
        agreed, missing = judge(trace.replay, self._margin), len(self._not_made(trace))
        sentence = agreed.sentence + (f"; {missing:,} of the calls were not made" if missing else "")
        level = Contract.STATISTICAL if agreed.holds else None
        return Check(level, sentence, invariants=inputs, agreement=agreed.record, left_out=trace.left_out)

    def _other_inputs(self, trace: Trace, old: TrialSpec) -> Check | None:
        """Why nothing can be said where calls were not made, or had other inputs than the original's, after the last
        whose inputs are compared; None where there are none, or the program may have such: it gives its model what that
        has made."""
        assert self._recorded is not None
        others = [call for call in trace.replay.get("other_inputs", ()) if call > self._runs.steps]
        missing = self._not_made(trace)
        if not others and not missing:
            return None
        gives_back = self._runs.gives_back(self._recorded, old)
        if isinstance(gives_back, ExitReason):
            return broke_off(trace, gives_back)
        if gives_back:
            return None
        told = [f"given other inputs than the original's, call {others[0]:,} first"] if others else []
        told += [f"not made, from call {missing[0]:,} on"] if missing else []
        count = len(others) + len(missing)
        calls = f"{count:,} {'call was' if count == 1 else 'calls were'}"
        return Check(None, f"{calls} {' or '.join(told)}: not established")

    def _not_made(self, trace: Trace) -> list[int]:
        """The recorded calls that the candidate's run did not come to: it was over before."""
        assert self._recorded is not None
        return [call for call in self._recorded.replay["states"] if call > trace.steps]

    def _record(self, old: TrialSpec) -> str | Check | None:
        """Have the original's calls recorded, once; why that is impossible, or None."""
        if self._recorded is not None or self.impossible:
            return self.impossible or None
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
        self._recorded, self._runs.seen = trace, trace.digests
        self.impossible = self._too_few_differ(trace)
        return self.impossible or None

    def _too_few_differ(self, trace: Trace) -> str:
        """Why no candidate's answers can tell enough, in words: the program asks the same again and again."""
        asked = {repr(trace.digests[step - 1].inputs) for step in trace.replay["states"] if step <= len(trace.digests)}
        samples, needed = len(asked) * self._samples_a_call(), samples_needed(self._margin, 0.0)
        if not asked or samples >= needed or len(asked) > len(trace.replay["states"]) / 2:
            return ""
        return (
            f"its calls are given the same again and again, {samples:,.0f} samples in all, and it takes {needed:,} "
            "that differ to tell how many are answered otherwise"
        )

    def _run(self, spec: TrialSpec, role: str, steps: tuple[int, ...]) -> Trace | ExitReason:
        replayed = replace(spec, replay=ReplayRole(role, str(self._folder), steps), digests="inputs")
        return self._runs.untimed.run(replayed, steps[-1])

    def _chosen(self, last: int) -> tuple[int, ...]:
        """Calls up to the last one, evenly spaced."""
        spare = last - self._enough_calls()
        first = min(_BEGUN, max(min(_BEGUN_AT_LEAST, spare), last // 8)) + 1
        count = min(self._wanted(), last - first + 1)
        return tuple(sorted({first + round(place * (last - first) / max(1, count - 1)) for place in range(count)}))

    def _wanted(self) -> int:
        """Calls that have so many samples."""
        calls = math.ceil(_OTHERS / self._margin / self._samples_a_call())
        return min(_MOST_CALLS, max(_FEWEST_CALLS, calls))

    def _enough_calls(self) -> int:
        return math.ceil(_ENOUGH * samples_needed(self._margin) / self._samples_a_call())

    def _last_call(self) -> int:
        runs = self._runs
        wanted = max(min(runs.steps, runs.budget.length or runs.steps), _BEGUN + self._wanted())
        left = runs.untimed.until - time.monotonic() - runs.budget.start
        if self.step_seconds and math.isfinite(left):
            each = self._call_seconds()
            fewest = _BEGUN_AT_LEAST + self._enough_calls()
            seconds = min(max(0.0, left) / 3, max(_SHARE * runs.budget.seconds, fewest * each))
            wanted = min(wanted, int(seconds / each))
        return max(_BEGUN + _FEWEST_CALLS, min(wanted, runs.budget.length or wanted))

    def _call_seconds(self) -> float:
        """Of a call of the original that is recorded."""
        return min(_RECORDING * self.step_seconds, self.step_seconds + _RECORDING_SECONDS)

    def _samples_a_call(self) -> float:
        """As the last comparison of inputs has them; before the first, as the control has."""
        counts = [each.samples for each in self._runs.seen if each.samples]
        return max(1.0, sum(counts) / len(counts) if counts else self._runs.facts.samples_per_step)
