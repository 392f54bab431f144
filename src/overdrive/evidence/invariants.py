"""What no level may change, from two digest logs: what went into every step of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from overdrive.core.contract import Contract
from overdrive.core.proof_record import Invariant
from overdrive.core.records import StepRecord, Trace

# Two sketches of one batch, one of them rounded to bf16, differ by less than this; those of two batches by 0.7 in the
# first number, and of one batch normalised wrongly, in the others, by as much as it is wrong. The first is a sum with
# changing signs, in which the roundings of pixels that are alike add up: 0.002 as a rule, and above 0.005 once in
# 84 batches of normalised 8-bit images.
_SKETCHES = (0.02, 0.005, 0.005)

_Entries = Sequence[tuple[StepRecord, ...]]  # of the original, the candidate and the perturbed original


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
    seen = f"seen after {evaluated} steps, by checksum" if evaluated else "no evaluation within these steps"
    return (
        _same("steps", f"{original.steps:,}", f"{candidate.steps:,}"),
        _same_values("batches", ("samples", "batches"), entries, f"the batches of {steps} steps, by checksum"),
        _same_inputs("inputs of the model", "inputs", entries, level, f"in {steps} steps, by checksum"),
        _same_values("calls of the model", ("calls",), entries, "as many, training or evaluating"),
        _same_inputs("evaluation data", "evaluation", entries, level, seen),
        _same_values("learning rates and weight decay", ("settings",), entries, f"in {steps} steps, group by group"),
        _same("trained parameters", original.trained, candidate.trained),
        _losses_sent(original, candidate),
    )


def _same(what: str, one: str, other: str) -> Invariant:
    return Invariant(what, one if one == other else f"{other} {what} instead of {one}", one == other)


def _losses_sent(original: Trace, candidate: Trace) -> Invariant:
    same = [len(step) for step in original.losses] == [len(step) for step in candidate.losses]
    return Invariant("backward passes", "as many in every step" if same else "another number of backward passes", same)


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
