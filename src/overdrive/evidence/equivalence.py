"""Decides whether two trials did the same, from their traces and step digest logs.

`screened` judges the traces of a duel: a first look, over the duel's own steps. `compared` and `judged_exact` judge
the digest logs of two trials that were made for the proof: what went into every step, which no level may change,
and all that came out of it. The levels `rounding` and `statistical` have files of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

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
from overdrive.core.records import StepRecord, Trace
from overdrive.core.units import unit_of

# A candidate's late loss may differ from the original's by this many standard deviations over seeds ...
_SPREADS = 3.0
# ... and never needs to agree better than this: four seeds know their own spread only roughly.
_RELATIVE = 0.005
_FEWEST_STEPS = 20


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


# What a digest log's entry holds of a step's outcome, in the order in which two runs part.
_OUTCOMES = ("losses", "parameters", "buffers", "optimizer_state", "random_states", "evaluation_results")
# Two sketches of one batch, one of them rounded to bf16, differ by less than this; those of two batches by 0.7 in the
# first number, and of one batch normalised wrongly, in the others, by as much as it is wrong. The first is a sum with
# changing signs, in which the roundings of pixels that are alike add up: 0.002 as a rule, and above 0.005 once in
# 84 batches of normalised 8-bit images.
_SKETCHES = (0.02, 0.005, 0.005)


_ANSWER_PARTS = ("outputs", "inputs of the model", "parameters", "buffers", "random states")


def _named(part: str) -> str:
    return part.replace("_", " ")


def aligned(one: Trace, other: Trace) -> tuple[Trace, Trace]:
    """Both up to the same step, where one went further only because it makes many steps in a call.

    The hash of where a run ended is then left out: the digest log's entries hold the state after each step.
    """
    short, long = sorted((one, other), key=lambda trace: trace.steps)
    in_one_call = long.rests and (len(long.rests) < 2 or long.rests[-2] < short.steps)
    if short.steps == long.steps or not in_one_call:
        return one, other
    return _cut(one, short.steps), _cut(other, short.steps)


def _cut(trace: Trace, steps: int) -> Trace:
    return replace(
        trace,
        steps=steps,
        losses=trace.losses[:steps],
        rates=trace.rates[:steps],
        digests=trace.digests[:steps],
        state="",
    )


def compared(
    original: Trace, candidate: Trace, level: Contract, perturbed: Trace | None = None
) -> tuple[Invariant, ...]:
    """What no level may change, from two digest logs: samples, steps, learning rates, evaluation data, parameters.

    `perturbed` is the original with its first parameters slightly changed: what differs there was made by the
    model, not by the data, and is compared bit for bit at level `exact` only.
    """
    original, candidate = aligned(original, candidate)
    varied = perturbed.digests if perturbed else ()  # it may end sooner: then nothing more is excused
    varied = (*varied, *original.digests[len(varied) :])
    entries = list(zip(original.digests, candidate.digests, varied, strict=False))
    steps = len(entries)
    evaluated = sum(bool(entry.evaluation) for entry, _, _ in entries)
    unit = original.unit
    if original.inference:
        return (
            _same("calls", f"{original.steps:,}", f"{candidate.steps:,}"),
            _same_values(
                "batches", ("samples", "batches"), entries, f"the batches of {steps} calls, by checksum", unit
            ),
            _same_inputs("inputs of the model", "inputs", entries, level, f"in {steps} calls, by checksum", unit),
            _same_values("calls of models", ("calls",), entries, "as many, in the same mode", unit),
            _same("parameters", original.trained, candidate.trained),
        )
    found = [
        _same("steps", f"{original.steps:,}", f"{candidate.steps:,}"),
        _same_values("batches", ("samples", "batches"), entries, f"the batches of {steps} steps, by checksum"),
        _same_inputs("inputs of the model", "inputs", entries, level, f"in {steps} steps, by checksum"),
        _same_values("calls of the model", ("calls",), entries, "as many, training or evaluating"),
        _same_inputs("evaluation data", "evaluation", entries, level, _evaluation_summary(evaluated)),
        _same_values("learning rates and weight decay", ("settings",), entries, f"in {steps} steps, group by group"),
        _same("trained parameters", original.trained, candidate.trained),
        _losses_sent(original, candidate),
    ]
    return tuple(found)


def _evaluation_summary(evaluated: int) -> str:
    return f"seen after {evaluated} steps, by checksum" if evaluated else "no evaluation within these steps"


def _same(what: str, one: str, other: str) -> Invariant:
    return Invariant(what, one if one == other else f"{other} {what} instead of {one}", one == other)


def _losses_sent(original: Trace, candidate: Trace) -> Invariant:
    same = [len(step) for step in original.losses] == [len(step) for step in candidate.losses]
    return Invariant("backward passes", "as many in every step" if same else "another number of backward passes", same)


_Entries = Sequence[tuple[StepRecord, ...]]  # of the original, the candidate and the perturbed original


def _same_values(what: str, keys: Sequence[str], entries: _Entries, detail: str, unit: str = "step") -> Invariant:
    values = [attrgetter(key) for key in keys]
    for number, (one, other, perturbed) in enumerate(entries, start=1):
        if any(value(one) != value(other) and value(one) == value(perturbed) for value in values):
            return Invariant(what, f"other {what} in {unit} {number}", False)
    return Invariant(what, detail, True)


def _same_inputs(what: str, key: str, entries: _Entries, level: Contract, detail: str, unit: str = "step") -> Invariant:
    """What the model was given: bit for bit, or up to rounding where the level permits other arithmetic."""
    for number, (one, other, perturbed) in enumerate(entries, start=1):
        given, got, varied = (getattr(each, key) for each in (one, other, perturbed))
        if len(given) != len(varied):
            continue  # how often the model is called depends on what it says
        if len(given) != len(got):
            return Invariant(what, f"other {what} in {unit} {number}", False)
        for slot, its, data in zip(given, got, varied, strict=True):
            if slot[0] != its[0] and slot[0] == data[0] and not (level is Contract.STATISTICAL and _alike(slot, its)):
                return Invariant(what, f"other {what} in {unit} {number}", False)
    return Invariant(what, detail, True)


def _alike(slot: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two tensors of fractions have one sketch, up to rounding."""
    one, two = slot[1:], other[1:]
    if len(one) != len(two) or len(one) != len(_SKETCHES):
        return False
    return all(abs(a - b) < most for a, b, most in zip(one, two, _SKETCHES, strict=True))


def first_broken(invariants: Sequence[Invariant]) -> Invariant | None:
    return next((each for each in invariants if not each.same), None)


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
