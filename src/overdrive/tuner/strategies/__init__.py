"""Strategies choose which candidate is tried next: `ask` gives one, `tell` receives its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.settings import Chosen
from overdrive.techniques.technique import Settings, Technique
from overdrive.tuner.outcomes import Adopted, Rejected


@dataclass(frozen=True)
class Candidate:
    """What may join the best plan so far: a technique with settings, or several that are tried in one duel."""

    members: tuple[tuple[Technique, Settings], ...]
    promise: float = 0.0  # the share of a step that it is expected to save on such a program
    again: bool = False  # it lost narrowly before
    replaces: tuple[str, ...] = ()  # those of the plan that it cannot be in one plan with: it is tried in their place

    @property
    def label(self) -> str:
        return " + ".join(label(technique.name, settings) for technique, settings in self.members)

    @property
    def techniques(self) -> tuple[Technique, ...]:
        return tuple(technique for technique, _ in self.members)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(technique.name for technique in self.techniques)

    @property
    def chosen(self) -> tuple[Chosen, ...]:
        """As a trial's spec has them."""
        return tuple((technique.name, settings) for technique, settings in self.members)

    @property
    def contract(self) -> Contract:
        """The strictest level that all of it can keep."""
        levels = [technique.contract_with(settings) for technique, settings in self.members]
        return max(levels, key=lambda each: each.rank)

    @property
    def fallback_contract(self) -> Contract | None:
        """The level at which it is tried where that does not hold, if there is one for any of its techniques."""
        looser = [each.fallback_contract for each in self.techniques if each.fallback_contract]
        loosest = max(looser, key=lambda each: each.rank, default=None)
        return loosest if loosest and loosest.rank > self.contract.rank else None

    @property
    def usual_start(self) -> float:
        """Seconds that it adds to the start of a process."""
        return sum(technique.usual_start for technique in self.techniques)

    def processes(self, facts: Facts) -> int:
        """Pairs of fresh processes that its duel takes."""
        return max(technique.processes(facts) for technique in self.techniques)


class Strategy(Protocol):
    """Decides what is tried, in which order, and what of it joins the plan."""

    def ask(self) -> Candidate | None:
        """The next candidate; None where none is left, or no time for it."""

    def tell(self, candidate: Candidate, outcome: Sequence[Adopted] | Rejected) -> None:
        """What the judge found: what may join the plan, one for each technique, or why nothing of it may."""


def label(name: str, settings: Settings) -> str:
    """A technique with its settings, for people."""
    values = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({values})" if values else name
