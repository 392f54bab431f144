"""Strategies choose which candidate is tried next: `ask` gives one, `tell` receives its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from overdrive.techniques.technique import Settings, Technique
from overdrive.tuner.findings import Adopted, Rejected


@dataclass(frozen=True)
class Candidate:
    """A technique with settings that may join the best plan so far."""

    technique: Technique
    settings: Settings
    promise: float = 0.0  # the share of a step that it usually saves on such a program

    @property
    def label(self) -> str:
        return label(self.technique.name, self.settings)


class Strategy(Protocol):
    """Decides what is tried, in which order, and what of it joins the plan."""

    def ask(self) -> Candidate | None:
        """The next candidate; None where none is left, or no time for it."""

    def tell(self, candidate: Candidate, outcome: Adopted | Rejected) -> None:
        """What the judge found: one that may join the plan, or why it may not."""


def label(name: str, settings: Settings) -> str:
    """A technique with its settings, for people."""
    values = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({values})" if values else name
