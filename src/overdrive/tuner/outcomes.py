"""What a tune comes to, technique by technique: adopted, rejected, or standing without a confirmation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict, product
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.techniques.technique import Settings
from overdrive.trials.duel import Duel


@dataclass(frozen=True)
class Rejected:
    name: str
    settings: Settings
    reason: str
    duel: Duel | None = None
    check: Check | None = None  # where it came to one
    kind: str = "measured"  # see `NotKept`
    measured: Interval | None = None  # where that was not by its duel
    lacks: float = 0.0  # seconds by which the budget was too small to try and confirm it; 0: that is not why

    @property
    def speedup(self) -> Interval | None:
        return self.measured or (self.duel.interval if self.duel else None)


@dataclass(frozen=True)
class Adopted:
    name: str
    settings: Settings
    duel: Duel
    check: Check
    for_memory: bool = False  # adopted for the memory it saves
    needed: bool = False  # the program does not run without it: its duel is only the attempt
    # It joined a statistical plan, and was only looked at as that will be proved: its level where it has to do without.
    joined: Contract | None = None
    # What it gains by more than its duel: by the screening, where several won that or it was not enough alone; with
    # what those gained whose place it took.
    share: Interval | None = None
    before: tuple[Adopted, ...] = ()  # the plan as it was, where this took the place of some of it

    @property
    def speedup(self) -> Interval | None:
        """What it gains by itself, as far as that is known."""
        return self.share or self.duel.interval

    @property
    def level(self) -> Contract:
        """What the whole plan has to be proved at because of it."""
        return self.joined or self.check.level or Contract.OPEN

    @property
    def verdict(self) -> Verdict:
        """Of its duel, and of what the screening said where that counted too."""
        return Verdict.FASTER if self.share else self.duel.verdict

    @property
    def stands_still(self) -> bool:
        """Whether a state can be loaded after any of its steps."""
        return self.duel.new_trace is None or not self.duel.new_trace.rests

    def in_place_of(self, others: Sequence[Adopted], before: Sequence[Adopted]) -> Adopted:
        """It, in the place of these of the plan before: by itself it gains what they did, times what its duel says."""
        gains = [each.speedup for each in (self, *others)]
        share = product([each for each in gains if each]) if all(gains) and not self.share else self.share
        return replace(self, share=share, before=tuple(before))

    def replaced_by(self, others: Sequence[Adopted]) -> Rejected:
        """What is told of it once these have its place."""
        names, won = " + ".join(each.name for each in others), others[0].duel.describe()
        reason = f"{names} took its place: {won} against the plan with it"
        return Rejected(self.name, self.settings, reason, self.duel, self.check)

    def looser(self) -> Contract | None:
        """The next level to try to prove one at that joined; None: there is none."""
        technique = catalogue()[self.name]
        return technique.fallback_contract if self.joined is technique.contract_with(self.settings) else None


@dataclass(frozen=True)
class Standing:
    """What is known of a proved plan for whose confirmation there was no time."""

    basis: str  # what the speed-up rests on
    interval: Interval | None
    duel: Duel | None  # of the whole plan against the untouched program; None: the interval is of several duels


def history(plan: Sequence[Adopted]) -> list[Adopted]:
    """All that was adopted on the way to this plan, in order: what lost its place to others, too."""
    last = next((each.before for each in reversed(plan) if each.before), ())
    if not last:
        return list(plan)
    place = next(number for number, each in enumerate(plan) if each.before is last)
    return [*history(last), *plan[place:]]


def duels_of(plan: Sequence[Adopted]) -> list[Duel]:
    """The duels of all that was adopted on the way to this plan, each once, in order."""
    return list({id(each.duel): each.duel for each in history(plan)}.values())


def won(plan: Sequence[Adopted]) -> list[Duel]:
    """Of these, those that were won: where nothing was dropped since, one's new side is the next one's old side."""
    attempts = [each.duel for each in plan if each.needed]
    return [duel for duel in duels_of(plan) if not any(duel is each for each in attempts)]


def gain_of(plan: Sequence[Adopted]) -> float:
    """The speedups of the duels that led to it, multiplied."""
    return math.prod(duel.interval.estimate for duel in duels_of(plan) if duel.interval)


def loosest(plan: Sequence[Adopted]) -> Contract:
    """The level of a plan: that of its loosest technique."""
    return max((each.level for each in plan), key=lambda level: level.rank, default=Contract.EXACT)


def shown_exact(plan: Sequence[Adopted]) -> list[Adopted]:
    """Its first ones that are exact, proved or by their duels alone."""
    return list(itertools.takewhile(lambda each: each.needed or each.level is Contract.EXACT, plan))


def proved_exact(plan: Sequence[Adopted]) -> Iterator[Adopted]:
    """What is proved exact, in the order of adoption, up to the first that is not: later ones build on it."""
    return itertools.takewhile(lambda each: each.needed or not each.check.pending, shown_exact(plan))


def names_of(plan: Sequence[Adopted]) -> tuple[str, ...]:
    return tuple(each.name for each in plan)


def excluded_by(names: Sequence[str], plan: Sequence[Adopted]) -> list[Adopted]:
    """Those of a plan that cannot be in one with these."""
    return [each for each in plan if conflict(each.name, names)]


def without(names: Collection[str], plan: Sequence[Adopted]) -> list[Adopted]:
    """The plan without these; what joined it after one of them was proved beside that, and has to be proved again."""
    kept, alone = [], False
    for each in plan:
        alone |= each.name in names
        if each.name not in names:
            kept.append(replace(each, check=replace(each.check, pending=True)) if alone else each)
    return kept
