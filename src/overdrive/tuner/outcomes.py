"""What a tune comes to, technique by technique: adopted, rejected, or standing without a confirmation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.techniques.catalogue import catalogue
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
    # What the screening says that it gains: where several won one duel, or where the duel alone was not enough.
    share: Interval | None = None

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

    def looser(self) -> Contract | None:
        """The next level to try to prove one at that joined; None: there is none."""
        technique = catalogue()[self.name]
        return technique.fallback_contract if self.joined is technique.contract else None


@dataclass(frozen=True)
class Standing:
    """What is known of a proved plan for whose confirmation there was no time."""

    basis: str  # what the speed-up rests on
    interval: Interval | None
    duel: Duel | None  # of the whole plan against the untouched program; None: the interval is of several duels


def duels_of(adopted: Sequence[Adopted]) -> list[Duel]:
    """The duels that they won, each once, in order."""
    return list({id(each.duel): each.duel for each in adopted}.values())


def gain_of(adopted: Sequence[Adopted]) -> float:
    """The speedups of their duels, multiplied."""
    return math.prod(duel.interval.estimate for duel in duels_of(adopted) if duel.interval)
