"""Whether two trials did the same, from what they left behind.

`check` judges the traces of a duel: a screening, over the duel's own steps. `compared` and `judged_exact` judge
the diaries of two trials that were made for the proof: what went into every step, which no level may change,
and all that came out of it. The levels `rounding` and `statistical` have files of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from overdrive.contract import Contract
from overdrive.trials.order import Trace

# Rounding may move the loss of a first forward pass by some thousand units of fp32's last place (6e-8).
_FIRST_LOSS = 1e-4
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
    evidence: Mapping[str, Any] = field(default_factory=dict)  # by level: what was compared, as plain data


@dataclass(frozen=True)
class Invariant:
    """Something that no level may change."""

    what: str
    told: str
    same: bool


def late_loss(trace: Trace, horizon: int) -> float:
    """Mean training loss over the last third of the first `horizon` steps."""
    means = step_losses(trace)[:horizon]
    tail = means[-max(1, len(means) // 3) :]
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


def differing_invariant(original: Trace, candidate: Trace) -> str | None:
    """What differs that no level permits: number of steps, samples, learning rates; or None."""
    if original.steps != candidate.steps:
        return f"made {candidate.steps} steps instead of {original.steps}"
    if original.samples != candidate.samples:
        return f"trained on {candidate.samples:g} samples instead of {original.samples:g}"
    if original.rates != candidate.rates:
        step = next(i for i, (a, b) in enumerate(zip(original.rates, candidate.rates), 1) if a != b)  # noqa: B905
        return f"used another learning rate in step {step}"
    if [len(step) for step in original.losses] != [len(step) for step in candidate.losses]:
        return "sent another number of losses backward"
    return None


def check(
    declared: Contract,
    falls_to: Contract | None,
    original: Trace,
    candidate: Trace,
    deterministic: bool,
    seeds: Sequence[Trace] = (),
) -> Check:
    """Judge a candidate that declares a contract by what both trials did over the same steps.

    `seeds` are traces of the original under other seeds, over the same number of steps.
    """
    wrong = differing_invariant(original, candidate)
    if wrong:
        return Check(None, wrong)
    bad = first_non_finite(candidate)
    if bad and not first_non_finite(original):
        return Check(None, f"its loss is not finite in step {bad}")
    steps = original.steps
    if same_bits(original, candidate):
        return Check(Contract.EXACT, f"{steps} steps identical bit for bit: losses, parameters, optimizer state")
    level: Contract | None = declared
    if declared is Contract.EXACT:
        if deterministic and falls_to is None:
            return Check(None, f"declared exact, but {_first_difference(original, candidate)}")
        # Where the program does not even equal itself, exactness cannot be seen: only the seeds judge.
        level = falls_to if deterministic else Contract.STATISTICAL
    if original.batches != candidate.batches and level is not Contract.STATISTICAL:
        return Check(None, "it saw other batches")
    if level is Contract.ROUNDING and (far := _far_at_first(original, candidate)):
        return Check(None, far)
    return _within_seeds(level, original, candidate, seeds)


def _first_difference(original: Trace, candidate: Trace) -> str:
    for index, (one, other) in enumerate(zip(original.losses, candidate.losses, strict=True), start=1):
        if one != other:
            return f"the loss of step {index} differs ({one[0]:.9g} became {other[0]:.9g})"
    return "the parameters or the optimizer's state differ at the end"


def _far_at_first(original: Trace, candidate: Trace) -> str | None:
    one, other = original.losses[0][0], candidate.losses[0][0]
    if abs(one - other) > _FIRST_LOSS * max(abs(one), 1e-3):
        return f"its very first loss is {other:.6g} instead of {one:.6g}, too far for rounding"
    return None


def _within_seeds(level: Contract | None, original: Trace, candidate: Trace, seeds: Sequence[Trace]) -> Check:
    if not seeds:
        return Check(None, "no other seeds of the program could be run to compare with")
    steps = min(original.steps, *(seed.steps for seed in seeds))
    if steps < _FEWEST_STEPS:
        return Check(None, f"{steps} steps are too few to tell its result from chance")
    late = [late_loss(trace, steps) for trace in (original, *seeds)]
    spread = statistics.stdev(late)
    bound = max(_SPREADS * spread, _RELATIVE * abs(late[0]))
    reached = late_loss(candidate, steps)
    difference = reached - late[0]
    told = f"late loss {reached:.4g} against {late[0]:.4g} over {steps} steps"
    if not abs(difference) <= bound:
        return Check(None, f"{told}, outside the spread of {len(late)} seeds (±{bound:.2g})")
    return Check(level, f"{told}, within the spread of {len(late)} seeds (±{bound:.2g}); a proxy, not a proof")


# What a diary's entry holds of a step's outcome, in the order in which two runs part.
_OUTCOMES = ("losses", "parameters", "buffers", "optimizer state", "random states")
# Two sketches of one batch, one of them rounded to bf16, differ by less than this; those of two batches by 0.7.
_SKETCHES = 0.02


def compared(original: Trace, candidate: Trace, level: Contract) -> tuple[Invariant, ...]:
    """What no level may change, from two diaries: samples, steps, learning rates, evaluation data, parameters."""
    steps = min(len(original.diary), len(candidate.diary))
    pairs = list(zip(original.diary[:steps], candidate.diary[:steps], strict=True))

    def entries(what: str, key: str, told: str) -> Invariant:
        for number, (one, other) in enumerate(pairs, start=1):
            if one[key] != other[key]:
                return Invariant(what, f"other {what} in step {number}", False)
        return Invariant(what, told, True)

    evaluated = sum(not str(entry["evaluation"]).startswith("0 ") for entry in original.diary)
    found = [
        _same("steps", f"{original.steps:,}", f"{candidate.steps:,}"),
        _same("samples", f"{original.samples:g}", f"{candidate.samples:g}"),
        entries("batches", "batches", f"the batches of {steps} steps, by checksum"),
        _same_inputs(pairs, level),
        entries("evaluation data", "evaluation", _told_evaluation(evaluated)),
        entries("learning rates and weight decay", "settings", f"in {steps} steps, for each group of parameters"),
        _same("trained parameters", original.trained, candidate.trained),
        _losses_sent(original, candidate),
    ]
    return tuple(found)


def _told_evaluation(evaluated: int) -> str:
    return f"seen after {evaluated} steps, by checksum" if evaluated else "no evaluation within these steps"


def _same(what: str, one: str, other: str) -> Invariant:
    return Invariant(what, one if one == other else f"{other} {what} instead of {one}", one == other)


def _losses_sent(original: Trace, candidate: Trace) -> Invariant:
    same = [len(step) for step in original.losses] == [len(step) for step in candidate.losses]
    return Invariant("backward passes", "as many in every step" if same else "another number of backward passes", same)


def _same_inputs(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], level: Contract) -> Invariant:
    """What the model was given: bit for bit, or up to rounding where the level permits other arithmetic."""
    what = "inputs of the model"
    for number, (one, other) in enumerate(pairs, start=1):
        if one["inputs"] == other["inputs"]:
            continue
        alike = len(one["sketch"]) == len(other["sketch"]) and all(
            abs(a - b) < _SKETCHES for a, b in zip(one["sketch"], other["sketch"], strict=True)
        )
        same_calls = str(one["inputs"]).split()[0] == str(other["inputs"]).split()[0]
        if level is not Contract.STATISTICAL or not (alike and same_calls and any(one["sketch"])):
            return Invariant(what, f"other {what} in step {number}", False)
    how = "by checksum" if level is not Contract.STATISTICAL else "by checksum or up to rounding"
    return Invariant(what, f"in {len(pairs)} steps, {how}", True)


def first_difference(original: Trace, candidate: Trace) -> str | None:
    """Where two runs part, as the end of a sentence; None where every step is the same bit for bit."""
    for number, (one, other) in enumerate(zip(original.diary, candidate.diary, strict=False), start=1):
        for part in ("batches", "inputs", "settings", *_OUTCOMES):
            if part == "losses":
                same = original.losses[number - 1] == candidate.losses[number - 1]
            else:
                same = one.get(part) == other.get(part)
            if not same:
                return f"the {part} of step {number} are not the same"
    if original.steps != candidate.steps:
        return f"one makes {original.steps} steps, the other {candidate.steps}"
    return None if original.state == candidate.state else "they end in different states"


def judged_exact(original: Trace, candidate: Trace) -> Check:
    """Level `exact`, from two diaries with bits."""
    told = compared(original, candidate, Contract.EXACT)
    wrong = next((each for each in told if not each.same), None)
    difference = wrong.told if wrong else first_difference(original, candidate)
    evidence = {
        "exact": {
            "steps": original.steps,
            "parts": [*_OUTCOMES, "batches"],
            "first_difference": difference,
        }
    }
    if difference:
        return Check(None, difference, invariants=told, evidence=evidence)
    sentence = f"{original.steps} steps identical bit for bit: losses, parameters, buffers, optimizer and random states"
    return Check(Contract.EXACT, sentence, invariants=told, evidence=evidence)


def proof_data(check: Check) -> dict[str, Any]:
    """A check as plain data, for the report."""
    return {
        "level": str(check.level) if check.level else None,
        "sentence": check.sentence,
        "proxy": check.proxy,
        "invariants": [asdict(each) for each in check.invariants],
        **{level: check.evidence.get(level) for level in ("exact", "rounding", "statistical")},
    }
