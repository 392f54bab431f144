"""Which candidates leave the screening, and when it is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from overdrive.evidence.screening.beliefs import Beliefs, beliefs, normal
from overdrive.evidence.screening.choice import Alternative, choose
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.factors import Factor, rivals_of

LOOKS = (24, 48, 72, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)  # pairs of blocks
_EARLY_LOOKS = (8, 16)  # where a pair takes so long that there may be no others: what is ruinous leaves
_HOPELESS = 0.02  # probability of being worth it, below which a candidate leaves ...
_FEWEST_PAIRS = 48  # ... when so many pairs compared it
# A speedup: one that is below that for certain costs the others time, and leaves at the first look. Of public siamese,
# 0.8 s a step, one thread (0.67) took a quarter of the time in which all others were measured.
_RUINOUS = 0.8
_FEWEST_TO_STOP = 24  # pairs: with fewer, what is not seen is not known to be nothing
_SURE = 0.97  # probability, from which on a candidate need not be looked at any longer
_FEWEST_PROCESSES = 3  # that a sure candidate must have been seen in
_EXPECTED_LOSS = 0.005  # of the choice, on log speed, below which nothing is to be gained by going on


@dataclass(frozen=True)
class LookResult:
    """What a look says."""

    drop: frozenset[str]  # candidates that leave the race
    stop: bool
    plan: tuple[str, ...]  # the choice by now


def next_look(pairs: int, early: bool = False) -> int:
    """The number of pairs at which the race is judged next; `early`: a pair takes long."""
    looks = (*_EARLY_LOOKS, *LOOKS) if early else LOOKS
    return next((look for look in looks if look > pairs), 512 * (pairs // 512 + 1))


def race(
    effects: Effects,
    active: Collection[str],
    candidates: Iterable[Alternative],
    factors: Sequence[Factor],
) -> LookResult:
    """Judge the candidates that are still active. Call it at looks: a verdict at every pair drops by chance."""
    candidates = list(candidates)
    believed = beliefs(effects, {each.label: each.prior for each in candidates})
    plan = choose(effects, candidates, factors, believed)
    running = [each.label for each in candidates if each.label in active and each.label in believed.by_label]
    drop = frozenset(label for label in running if label not in plan and _is_hopeless(effects, believed, label))
    left = [label for label in running if label not in drop]
    sure = all(believed.best[label] > _SURE for label in left) and effects.processes >= _FEWEST_PROCESSES
    decided = sure or _expected_loss(effects, believed, plan, left, factors) < _EXPECTED_LOSS
    return LookResult(drop, not left or (decided and effects.pairs >= _FEWEST_TO_STOP), plan)


def _is_hopeless(effects: Effects, believed: Beliefs, label: str) -> bool:
    """Not one that is worth it beside some other."""
    enough = effects.seen.get(label, 0) >= _FEWEST_PAIRS or effects.speedup(label).high < _RUINOUS
    return enough and believed.best[label] < _HOPELESS


def _expected_loss(
    effects: Effects, believed: Beliefs, plan: Collection[str], labels: Collection[str], factors: Sequence[Factor]
) -> float:
    """What is expected to be lost against the best plan, on log speed, by what the choice left out, and by what it
    took: the most that going on can bring. What excludes something of the choice would take its place."""
    loss = 0.0
    for label in labels:
        belief = believed.by_label[label]
        excluded = rivals_of(label, factors).intersection(plan)
        if excluded or any(label in pair for pair in effects.interacting):
            rest = set(plan) - {label}
            weights = effects.of_plan({*rest - excluded, label}) - effects.of_plan(rest)
            belief = normal(*effects.gain(weights))
        loss += belief.below if label in plan else belief.above
    return loss
