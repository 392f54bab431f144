"""What a tune established, as data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from overdrive.contract import Contract
from overdrive.evidence.attribution import Attribution
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict, noise_floor
from overdrive.facts import Facts
from overdrive.program import Program
from overdrive.session import Chosen
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Settings
from overdrive.trials.duel import Duel
from overdrive.trials.order import Order


@dataclass(frozen=True)
class Rejected:
    name: str
    settings: Settings
    reason: str
    duel: Duel | None = None


@dataclass(frozen=True)
class Adopted:
    name: str
    settings: Settings
    duel: Duel
    check: Check


@dataclass
class Findings:
    """What a tune established, as data. `refusal` says in one sentence why there is nothing, if so."""

    program: Program
    contract: Contract
    control: Duel | None = None
    confirmation: Duel | None = None
    proof: Check | None = None  # of the whole plan
    attribution: Attribution | None = None
    dropped: list[Rejected] = field(default_factory=list)  # adopted first, and taken out again
    adopted: list[Adopted] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    seeds: list[list[float]] = field(default_factory=list)  # loss curves of the program under other seeds
    deterministic: bool = True
    notes: list[str] = field(default_factory=list)
    refusal: str | None = None
    refusal_is_failure: bool = False  # the program itself failed
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    isolation: str = ""

    @property
    def verdict(self) -> Verdict:
        """FASTER only where a confirmed plan is both faster and the same."""
        if self.confirmation is None or self.proof is None:
            return Verdict.INCONCLUSIVE
        if self.confirmation.verdict is Verdict.FASTER and self.proof.level is None:
            return Verdict.INCONCLUSIVE
        return self.confirmation.verdict

    @property
    def chosen(self) -> list[Adopted]:
        """The techniques of the plan: none, unless the whole was confirmed."""
        return self.adopted if self.verdict is Verdict.FASTER else []

    def best(self) -> tuple[Chosen, ...]:
        """What is adopted so far."""
        return tuple((each.name, each.settings) for each in self.adopted)

    def quick_plain(self) -> Order:
        """The program under the techniques that were proved exact: the same runs, sooner done."""
        first: list[Chosen] = []
        for each in self.adopted:
            if each.check.level is not Contract.EXACT:
                break  # those adopted later were compared with a plan that was not exact
            first.append((each.name, each.settings))
        return Order(self.program, tuple(first))

    def loosest(self) -> Contract:
        """The level of the plan so far: that of its loosest technique."""
        levels = [each.check.level or Contract.OPEN for each in self.adopted]
        return max(levels, key=lambda level: level.rank, default=Contract.EXACT)

    def noise(self) -> float | None:
        return noise_floor(self.control.pairs) if self.control and len(self.control.pairs) > 1 else None


def leftovers(found: Findings, facts: Facts | None) -> list[Rejected]:
    """The techniques that never came to a duel, with the reason that holds for the final plan."""
    named = {each.name for each in found.adopted} | {each.name for each in [*found.rejected, *found.dropped]}
    rest = []
    for name, technique in catalogue().items():
        if name not in named and technique.contract is not Contract.OPEN:
            reason = technique.applies(facts) if facts else None
            rest.append(Rejected(name, {}, reason or "not tried"))
    return rest
