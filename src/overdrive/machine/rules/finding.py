"""A finding: what is wrong, what it costs, what fixes it, and how sure that is. Data, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from overdrive.core.in_runs import in_runs

Survey = Mapping[str, Any]
Rule = Callable[[Survey], "Iterator[Finding]"]


class Severity(Enum):
    """Severities, in the order in which they are shown. Only `WRONG` makes doctor's exit code 1."""

    WRONG = "wrong"  # broken, or set so that training is slower or fails, with nothing gained
    ADVICE = "advice"  # may be better otherwise; whether it matters depends on the program
    NOTE = "note"  # good to know


class Basis(Enum):
    """How the cost is known."""

    MEASURED = "measured here"
    COMPUTED = "computed"
    CITED = "as documented"
    UNKNOWN = "not measured here"


class Sure(Enum):
    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class Finding:
    """One thing found by one rule; sentences for people, and a command to be copied where there is one."""

    rule: str
    severity: Severity
    what: str
    cost: str
    basis: Basis
    fix: str
    sure: Sure
    command: str = ""
    source: str = ""


def finding(
    rule: str,
    judged: tuple[Severity, Basis, Sure],
    what: str,
    cost: str,
    fix: str,
    command: str = "",
    source: str = "",
) -> Finding:
    """`judged`: how bad it is, how its cost is known, and how sure it is."""
    severity, basis, sure = judged
    return Finding(rule, severity, what, cost, basis, fix, sure, command, source)


@dataclass(frozen=True)
class LeftOut:
    """What could not be looked at, and why."""

    what: str
    why: str


def listed(numbers: list[int]) -> str:
    """ "0, 2 to 7": numbers in rising order, for people."""
    runs = in_runs(sorted(numbers))
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(words)
