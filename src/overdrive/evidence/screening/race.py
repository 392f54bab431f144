"""Which candidates leave the screening, and when it is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from overdrive.core.interval import Interval
from overdrive.core.units import several
from overdrive.evidence.screening.beliefs import WORTH, Beliefs, beliefs, normal
from overdrive.evidence.screening.choice import Alternative, Choice, choose
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.factors import Factor

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
class Dropped:
    """A candidate that leaves the race, with its speedup as measured."""

    label: str
    speedup: Interval
    reason: str


@dataclass(frozen=True)
class LookResult:
    """What a look says."""

    drop: tuple[Dropped, ...]
    stop: bool
    reason: str  # why it stops, or what it goes on for: the end of a sentence
    expected_loss: float  # of the choice against the best plan, on log speed: the most that going on can bring
    choice: Choice


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
    choice = choose(effects, candidates, factors, believed)
    running = [each.label for each in candidates if each.label in active and each.label in believed.by_label]
    drop = tuple(each for label in running if (each := _dropped(effects, believed, label, choice)))
    gone = {each.label for each in drop}
    left = [label for label in running if label not in gone]
    loss = _expected_loss(effects, believed, choice, left)
    stop, reason = _over(effects, believed, left, loss)
    if left and effects.pairs < _FEWEST_TO_STOP:
        stop, reason = False, f"{effects.pairs} pairs are too few to end with"
    return LookResult(drop, stop, reason, loss, choice)


def _dropped(effects: Effects, believed: Beliefs, label: str, choice: Choice) -> Dropped | None:
    """Not those of the present choice, and not those that are worth it beside some other."""
    seen, worth = effects.seen.get(label, 0), believed.best[label]
    speedup = effects.speedup(label)
    if label in choice.plan or worth >= _HOPELESS:
        return None
    if speedup.high < _RUINOUS:
        return Dropped(label, speedup, f"it makes the program at least {1 - speedup.high:.0%} slower")
    if seen < _FEWEST_PAIRS:
        return None
    return Dropped(label, speedup, f"the odds that it gains {WORTH:.0%} are below {_HOPELESS:.0%}")


def _expected_loss(effects: Effects, believed: Beliefs, choice: Choice, labels: Collection[str]) -> float:
    """What is expected to be lost by what the choice left out, and by what it took."""
    loss = 0.0
    for label in labels:
        belief = believed.by_label[label]
        if any(label in pair for pair in effects.interacting):
            rest = set(choice.plan) - {label}
            weights = effects.of_plan({*rest, label}) - effects.of_plan(rest)
            belief = normal(*effects.gain(weights))
        loss += belief.below if label in choice.plan else belief.above
    return loss


def _over(effects: Effects, believed: Beliefs, left: Sequence[str], loss: float) -> tuple[bool, str]:
    if not left:
        return True, "no candidate is left that may gain anything"
    if loss < _EXPECTED_LOSS:
        return True, f"another plan is expected to be less than {_EXPECTED_LOSS:.1%} faster"
    unsure = [label for label in left if believed.best[label] <= _SURE]
    if not unsure and effects.processes >= _FEWEST_PROCESSES:
        return True, "all candidates that are left gain for certain"
    if not unsure:
        return False, f"what gains has been seen in {several(effects.processes, 'process', 'processes')} only"
    return False, f"{len(unsure)} of {len(left)} candidates are not decided"
