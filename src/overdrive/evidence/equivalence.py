"""Whether two trials did the same: the first proof, from the traces that every duel leaves behind.

`exact` is established here. For the other levels this is a proxy over the duel's own steps (the full
proof, with fp64 and many seeds, has its place beside this file).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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
