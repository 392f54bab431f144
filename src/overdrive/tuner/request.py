"""What a tune was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from overdrive.core.contract import Contract
from overdrive.core.metric import Metric
from overdrive.core.objective import TIME, Objective
from overdrive.core.program import Program
from overdrive.machine.pool.curve import Measured

LONGEST = 600.0  # seconds of a tune whose budget is not given


@dataclass(frozen=True)
class TuneRequest:
    """One program, what may change in it, and what is to be saved within which time."""

    program: Program
    contract: Contract = Contract.ROUNDING
    budget: float | None = None  # seconds; None: as long as it pays, and ten minutes at most
    runs: int = 10  # of the program that the user will make: what a tune may cost is measured by them
    metric: Metric | None = None  # that a statistical proof compares; None: the training loss
    margin: float | None = None  # its difference that is allowed, in its own unit; None: by the proof's rule
    objective: Objective = TIME
    only: frozenset[str] = frozenset()  # the techniques that may be tried, open ones too; empty: all but the open ones

    ranks: int | None = None  # as how many processes it is tried; 0: as many as pay; None: as one alone
    pool: Measured | None = None  # what was measured between ranks, which the report has beside what they exchanged
    typed: tuple[str, ...] = ()  # options that stand again in a command that is to be typed next

    def purpose(self) -> str:
        """The key that separates tunes of one program in the ledger."""
        on_ranks = "" if self.ranks is None else f", ranks {self.ranks or 'auto'}"
        return f"{self.contract}, {self.objective}{on_ranks}"

    def most_seconds(self) -> float:
        return LONGEST if self.budget is None else self.budget
