"""Level `rounding`: steps from the same saved states, each compared with the same step in fp64."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.proof_record import Invariant
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence import replayed, rounding
from overdrive.evidence.equivalence import Check
from overdrive.proof.budget import MOST_STEPS, ends_of_epochs, replayed_within
from overdrive.proof.replays import STATES, ReferenceRun, events_in
from overdrive.proof.runs import ProofRuns, broke_off

_QUICK = 15.0  # seconds of a run
# Of programs that only call their model: calls in fp64 take up to 16 times as long as others (convolutions on a CPU).
_FP64_SECONDS, _FP64_TIMES = 20.0, 16.0
_FEWEST_CALLS = 6  # that are recorded all the same
_FP64_STEP = 2.0  # a training step in fp64 takes as long as so many others (a ResNet-18 on two cores: 1.9)
_STATE_SECONDS = 0.08  # to find a program's state among all objects, load it, and compare what came of it
_STEPS_A_CALL = 3  # calls that are made for one that is recorded, where there are few


class RoundingProof:
    """Proves by state replay. The reference run is made once, of the first program that is given."""

    def __init__(self, runs: ProofRuns) -> None:
        self._runs = runs
        self._reference: ReferenceRun | None = None
        self._few: ReferenceRun | None = None

    @property
    def begun(self) -> bool:
        """Whether the reference run is there."""
        return self._reference is not None and self._reference.begun

    def seconds_needed(self, steps: int, run: float) -> float:
        """An estimate for `compare`, which replays states of so many steps.

        Args:
            run: seconds of such a trial, without states.
        """
        untimed = self._runs.untimed
        replay = max(run + min(2 * STATES, steps) * _STATE_SECONDS, untimed.seconds)
        if self.begun:
            return replay + untimed.given_up.get("candidate", 0.0)
        # Before the candidate: a log of the original's calls, its reference run, and its own steps from the states.
        looked = self._runs.facts.inference and self._is_quick(steps)
        plain = max(run, untimed.seconds) if looked or self._runs.asks_what_was_made else 0.0
        in_fp64 = min(2 * STATES, steps) * _FP64_STEP * self._runs.facts.step_seconds
        return plain + 3 * replay + in_fp64 + max(untimed.given_up.values(), default=0.0)

    def compare(self, plain: TrialSpec, new: TrialSpec) -> Check:
        """`new` against `plain`, in steps from states that a reference run saved along its run.

        Args:
            plain: the untouched program, or the same bit for bit; the first that was given makes the reference run.
        """
        self._runs.stage("proof: replayed steps against fp64")
        reference = self._made(plain)
        if self._runs.may_not_bear_cuts:
            refusal = reference.begin()
            if refusal and not reference.begun:  # there was no time for it
                return Check(None, refusal)
            self._runs.settle_cuts(borne=not refusal)
            if refusal:
                self._reference = None
                reference = self._made(plain)
        return self._compared(reference, new)

    def few_states(self, plain: TrialSpec, new: TrialSpec) -> Check:
        """A short look: three states, and no comparison of inputs, which `ProofRuns.same_inputs` is for.

        Args:
            plain: as in `compare`.
        """
        runs = self._runs
        runs.stage("proof: three replayed steps against fp64")
        if self._few is None:
            steps = min(runs.steps, MOST_STEPS)
            self._few = ReferenceRun(runs.untimed, runs.cut(plain), steps, events_in(runs.seen), few=True)
        pair = self._paired(self._few, new)
        if isinstance(pair, Check):
            return pair
        return self._judged(*pair, ())

    def _compared(self, reference: ReferenceRun, new: TrialSpec) -> Check:
        pair = self._paired(reference, new)
        if isinstance(pair, Check):
            return pair
        reference, one, other = pair
        perturbed = lambda: self._runs.perturbed(reference.plain)  # noqa: E731
        invariants = self._runs.compared(one, other, Contract.ROUNDING, perturbed)
        if isinstance(invariants, Check):
            return invariants
        return self._judged(reference, one, other, invariants)

    def _paired(self, reference: ReferenceRun, new: TrialSpec) -> tuple[ReferenceRun, Trace, Trace] | Check:
        """The original and `new` from the same states, of another reference run where calls make many steps."""
        runs = self._runs
        pair = self._replayed(reference, new)
        if isinstance(pair, Check):
            return pair
        one, other = pair
        within = _call_starts(one) & _call_starts(other) if one.rests or other.rests else frozenset()
        if not within or len(within.intersection(one.replay["states"], other.replay["states"])) >= reference.fewest:
            return reference, one, other
        steps, few = min(runs.steps, MOST_STEPS), reference is self._few
        reference = ReferenceRun(runs.untimed, reference.plain, steps, among=within, few=few)
        pair = self._replayed(reference, new)
        return pair if isinstance(pair, Check) else (reference, *pair)

    def _judged(self, reference: ReferenceRun, one: Trace, other: Trace, invariants: tuple[Invariant, ...]) -> Check:
        # Steps in the midst of a call that makes many cannot be begun from a saved state: by either, then.
        skipped = {step for trace in (one, other) for step in trace.replay.get("out_of_reach", ())}
        mine, its = _rows(one, skipped), _rows(other, skipped)
        result = rounding.judge(mine, its, careful=bool(reference.careful))
        if result.holds is False and not reference.careful:
            disturbed = reference.disturbed()
            if isinstance(disturbed, ExitReason) and disturbed.kind == "late":
                return broke_off(one, disturbed)
            if isinstance(disturbed, Trace):
                result = rounding.judge(mine, its, disturbed=_rows(disturbed, skipped))
        record = replace(result.record, flag=reference.careful or None)
        return Check(
            Contract.ROUNDING if result.holds else None,
            result.sentence,
            invariants=invariants,
            rounding=record,
            left_out=other.left_out,
        )

    def error_against_fp64(self, plain: TrialSpec, new: TrialSpec) -> float | None:
        """The error of a gradient, as a share of its size, in replayed steps; None where there is no step in fp64."""
        reference = self._made(plain)
        if reference.begin() or reference.careful:
            return None
        trace = reference.candidate(new)
        return None if isinstance(trace, ExitReason) else replayed.relative_error(replayed.rows_of(trace.replay))

    def _made(self, plain: TrialSpec) -> ReferenceRun:
        if self._reference is None:
            steps = replayed_within(self._runs.steps)
            most = self._most_calls() if plain.clock == "inference" else 2 * STATES
            if most < 2 * STATES:
                steps = min(steps, _STEPS_A_CALL * most)
            events = self._events(plain, steps)
            self._reference = ReferenceRun(self._runs.untimed, self._runs.cut(plain), steps, events, most=most)
        return self._reference

    def _most_calls(self) -> int:
        """How many recorded calls there is time for: their answers in fp64 take most of it."""
        seconds = _FP64_TIMES * self._runs.facts.step_seconds
        return min(2 * STATES, max(_FEWEST_CALLS, int(_FP64_SECONDS / max(seconds, 1e-6))))

    def _events(self, plain: TrialSpec, steps: int) -> tuple[int, ...]:
        """Steps in which something rare happens: by a log that is there, else as the lengths of epochs foretell it."""
        if self._runs.seen:
            return events_in(self._runs.seen)
        if plain.clock == "inference":  # few of its calls are replayed, and no log of these reaches the last batch
            perturbed = self._runs.perturbed(plain) if self._is_quick(steps) else None
            return events_in(perturbed.digests) if isinstance(perturbed, Trace) else ()
        return ends_of_epochs(self._runs.facts, self._runs.epoch, steps)

    def _is_quick(self, steps: int) -> bool:
        return steps * self._runs.facts.step_seconds <= _QUICK

    def _replayed(self, reference: ReferenceRun, new: TrialSpec) -> tuple[Trace, Trace] | Check:
        """The original and `new`, both from the reference run's states."""
        refusal = reference.begin()
        if refusal:
            return Check(None, refusal)
        one, other = reference.candidate(reference.plain), reference.candidate(new)
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return broke_off(one, other)
        return one, other


def _rows(trace: Trace, without: Set[int]) -> list[replayed.TensorRow]:
    return [row for row in replayed.rows_of(trace.replay) if row.step not in without]


def _call_starts(trace: Trace) -> frozenset[int]:
    """The steps that a state can be loaded before: all, or those that a call begins with."""
    return frozenset(step + 1 for step in trace.rests or range(1, trace.steps + 1))
