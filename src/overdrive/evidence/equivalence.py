"""Decides whether two trials did the same, from their traces and step digest logs.

`screened` judges the traces of a duel: a first look, over the duel's own steps. `judged_exact` judges the digest logs
of two trials that were made for the proof: what went into every step, which no level may change (`invariants.py`), and
all that came out of it. The levels `rounding` and `statistical` have files of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from overdrive.core.contract import Contract
from overdrive.core.proof_record import (
    AgreementRecord,
    ExactRecord,
    Invariant,
    MetricRecord,
    ProofRecord,
    RoundingRecord,
    StatisticalRecord,
)
from overdrive.core.records import Trace
from overdrive.core.units import unit_of
from overdrive.evidence.invariants import aligned, compared, first_broken

# A candidate's late loss may differ from the original's by this many standard deviations over seeds ...
_SPREADS = 3.0
# ... and never needs to agree better than this: four seeds know their own spread only roughly.
_RELATIVE = 0.005
_FEWEST_STEPS = 20
# What a digest log's entry holds of a step's outcome, in the order in which two runs part.
_OUTCOMES = ("losses", "parameters", "buffers", "optimizer_state", "random_states", "evaluation_results")
_ANSWER_PARTS = ("outputs", "inputs of the model", "parameters", "buffers", "random states")


@dataclass(frozen=True)
class Check:
    """`level`: the strictest level that was seen to hold, or None where it must not be used."""

    level: Contract | None
    sentence: str
    proxy: bool = False  # over a shorter stretch than the program makes
    invariants: tuple[Invariant, ...] = ()
    exact: ExactRecord | None = None  # what was compared at this level; so with the next two
    rounding: RoundingRecord | None = None
    statistical: StatisticalRecord | None = None
    agreement: AgreementRecord | None = None  # of answers, at the same level
    metric: MetricRecord | None = None  # of answers, at every level
    late: bool = False  # there was no time for it: nothing is said of the plan
    pending: bool = False  # only what its duel ran was compared: the proof of the whole plan is to come
    left_out: Mapping[str, str] = field(default_factory=dict)  # techniques that were, in its trials, with the reason

    def of_what_acted(self, names: Iterable[str]) -> Check:
        """The same, unless one of these was left out in its trials: of that nothing was seen."""
        idle = next((name for name in names if name in self.left_out), None)
        if idle is None or self.level is None:
            return self
        return replace(self, level=None, sentence=f"{idle} did not act in its proof: {self.left_out[idle]}")

    def of_a_plan(self, names: Sequence[str]) -> Check:
        """The same of a plan of these: it holds for those that acted, and where none did nothing was seen."""
        idle = [name for name in names if name in self.left_out]
        if not idle or self.level is None:
            return self
        if len(idle) == len(names):
            why = "; ".join(f"{name} ({self.left_out[name]})" for name in idle)
            return replace(self, level=None, sentence=f"none of its techniques acted: {why}")
        which = f"{' and '.join(idle)}, which did not act"
        return replace(self, sentence=f"{self.sentence}; nothing is said of {which}")


OPEN = Check(Contract.OPEN, "it changes the training itself, as was asked for by name")


def late_loss(losses: Sequence[float], horizon: int) -> float:
    """Mean training loss over the last third of the first `horizon` steps."""
    tail = losses[:horizon][-max(1, min(horizon, len(losses)) // 3) :]
    return statistics.fmean(tail) if tail else math.nan


def step_losses(trace: Trace) -> list[float]:
    """One loss a step: the mean of all that were sent backward in it."""
    return [statistics.fmean(step) for step in trace.losses if step]


def first_non_finite(trace: Trace) -> int | None:
    """The first step (from 1) with a loss that is NaN or infinite."""
    for index, step in enumerate(trace.losses, start=1):
        if not all(map(math.isfinite, step)):
            return index
    return None


def same_bits(one: Trace, other: Trace) -> bool:
    """All losses, parameters, optimizer and random states equal bit for bit at the same step."""
    return one.steps == other.steps and one.losses == other.losses and one.state == other.state


def same_in_its_duel(one: Trace, other: Trace) -> Check | None:
    """What a duel says of a technique that is to be exact, until the whole plan is proved; None where it differs."""
    if not same_bits(one, other):
        return None
    parts = _ANSWER_PARTS if one.inference else ("losses", "parameters", "optimizer states", "random states")
    sentence = f"the {one.steps} {one.unit}s of its duel came to the same, bit for bit"
    return Check(Contract.EXACT, sentence, exact=ExactRecord(one.steps, one.inference, parts), pending=True)


def same_in_their_duels(checks: Sequence[Check]) -> Check:
    """Of a plan each of whose techniques was the same in its duel, beside those that were there before it."""
    fewest = min(checks, key=_steps_compared)
    unit = unit_of(fewest.exact is not None and fewest.exact.calls)
    sentence = f"in the duels of its techniques {_steps_compared(fewest)} {unit}s or more came to the same, bit for bit"
    return replace(fewest, sentence=f"{sentence}; no time was left to hash each of them", pending=False)


def _steps_compared(check: Check) -> int:
    return (check.exact.steps if check.exact else None) or 0


def differing_invariant(original: Trace, candidate: Trace) -> str | None:
    """What differs that no level permits: number of steps, samples, learning rates; or None."""
    if original.steps != candidate.steps:
        return f"made {candidate.steps} {original.unit}s instead of {original.steps}"
    if original.samples != candidate.samples:
        did = "answered for" if original.inference else "trained on"
        return f"{did} {candidate.samples:g} samples instead of {original.samples:g}"
    if original.rates != candidate.rates:
        step = next(i for i, (a, b) in enumerate(zip(original.rates, candidate.rates), 1) if a != b)  # noqa: B905
        return f"used another learning rate in step {step}"
    if [len(step) for step in original.losses] != [len(step) for step in candidate.losses]:
        return "sent another number of losses backward"
    return None


def too_short_to_look(original: Trace, candidate: Trace) -> Check | None:
    """The check of a duel with so few steps that their late loss says nothing: the proof of the whole plan decides."""
    steps = min(original.steps, candidate.steps)
    if steps >= _FEWEST_STEPS:
        return None
    sentence = f"{steps} steps are too few for a first look at its result: the proof of the whole plan decides"
    return Check(Contract.STATISTICAL, sentence, proxy=True)


def screened(original: Trace, candidate: Trace, seeds: Sequence[Sequence[float]]) -> Check:
    """A first look at level `statistical`: the late loss of a duel within the spread of a few seeds (loss curves)."""
    if not seeds:
        return Check(None, "no other seeds of the program could be run to compare with")
    curves = [step_losses(original), step_losses(candidate), *seeds]
    steps = min(map(len, curves))
    if steps < _FEWEST_STEPS:
        return Check(None, f"{steps} steps are too few to tell its result from chance")
    own, reached, *others = (late_loss(curve, steps) for curve in curves)
    late = [own, *others]
    bound = max(_SPREADS * statistics.stdev(late), _RELATIVE * abs(own))
    sentence = f"late loss {reached:.4g} against {own:.4g} over {steps} steps"
    if not abs(reached - own) <= bound:
        return Check(None, f"{sentence}, outside the spread of {len(late)} seeds (±{bound:.2g})", proxy=True)
    return Check(
        Contract.STATISTICAL,
        f"{sentence}, within the spread of {len(late)} seeds (±{bound:.2g}); a first look",
        proxy=True,
    )


def _named(part: str) -> str:
    return part.replace("_", " ")


def first_difference(original: Trace, candidate: Trace) -> str | None:
    """The place where two runs part, as the end of a sentence; None where every step is the same bit for bit."""
    for number, (one, other) in enumerate(zip(original.digests, candidate.digests, strict=False), start=1):
        for part in ("batches", "calls", "inputs", "settings", *_OUTCOMES):
            if part == "losses":
                same = original.losses[number - 1] == candidate.losses[number - 1]
            else:
                same = getattr(one, part) == getattr(other, part)
            if not same:
                named = "outputs" if original.inference and part == "evaluation_results" else _named(part)
                return f"other {named} in {original.unit} {number}"
    if original.steps != candidate.steps:
        return f"one makes {original.steps} {original.unit}s, the other {candidate.steps}"
    return None if original.state == candidate.state else "they end in different states"


def judged_exact(original: Trace, candidate: Trace) -> Check:
    """Level `exact`, from two digest logs with bits."""
    original, candidate = aligned(original, candidate)
    invariants = compared(original, candidate, Contract.EXACT)
    wrong = first_broken(invariants)
    difference = wrong.told if wrong else first_difference(original, candidate)
    parts = _ANSWER_PARTS if original.inference else (*map(_named, _OUTCOMES), "batches")
    exact = ExactRecord(original.steps, original.inference, parts, difference)
    if difference:
        return Check(None, difference, invariants=invariants, exact=exact)
    outcome = "outputs, parameters, buffers" if original.inference else "losses, parameters, buffers, optimizer"
    sentence = f"{original.steps} {original.unit}s identical bit for bit: {outcome} and random states"
    return Check(Contract.EXACT, sentence, invariants=invariants, exact=exact)


def proof_record(check: Check) -> ProofRecord:
    level = str(check.level) if check.level else None
    compared = check.exact, check.rounding, check.statistical, check.agreement, check.metric
    return ProofRecord(level, check.sentence, check.proxy, check.invariants, *compared)
