"""Candidates that lost narrowly, and may be tried once more.

Techniques help each other, so that autocast may lose in one memory order and win in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from overdrive.evidence.speed import LEAST_GAIN
from overdrive.techniques.technique import Technique
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Rejected, excluded_by, names_of
from overdrive.tuner.reasons import lost_narrowly
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.strategies import Candidate
from overdrive.tuner.strategies.worth import Worth

# One is tried once more, when the plan has become so many times as fast since: what was a small share of a step may
# then be a large one.
_OTHER_PROGRAM = 1.1


@dataclass(frozen=True)
class _Loser:
    """One that lost narrowly, promising what it saved as far as could be seen. `gain`: of the plan until then."""

    candidate: Candidate
    gain: float


class SecondChances:
    def __init__(self, found: Findings, schedule: Schedule, worth: Worth, before: SecondChances | None = None) -> None:
        """`before`: those of an earlier strategy of this tune."""
        self._found, self._schedule, self._worth = found, schedule, worth
        self._losers: dict[str, _Loser] = dict(before._losers if before else {})

    def add(self, candidate: Candidate, outcome: Rejected) -> None:
        """It has lost; nothing is kept of it unless that was narrowly."""
        duel = outcome.duel
        if duel and outcome.check is None and lost_narrowly(duel) and duel.interval:
            seen = replace(candidate, promise=1 - 1 / duel.interval.estimate, again=True)
            self._losers[candidate.label] = _Loser(seen, self._found.gain())

    def take(self, candidate: Candidate) -> None:
        """It is tried now, and is none of these any more."""
        self._losers.pop(candidate.label, None)

    def promise_now(self, candidate: Candidate) -> float | None:
        """What it saved, as far as could be seen, where the plan is another program by now; else None."""
        lost = self._losers.get(candidate.label)
        return lost.candidate.promise if lost and self._found.gain() > _OTHER_PROGRAM * lost.gain else None

    def best(self, suits: Callable[[Technique], bool]) -> Candidate | None:
        """Of those that lost narrowly the one that seemed to save most, where time is left when all were tried.

        Of public super-resolution the allocator's duel told 1.16x [0.97, 1.38], and 69 s of five minutes were left; in
        another tune 1.11x [1.05, 1.16], which was no more than processes differed, and two minutes.

        Args:
            suits: whether a technique may be tried now.
        """
        if self._found.wanted() != "time":
            return None
        for each in sorted(self._losers.values(), key=lambda each: -each.candidate.promise):
            candidate, schedule = each.candidate, self._schedule
            if candidate.promise < LEAST_GAIN or not self._worth.pays(candidate):
                continue
            if (
                not suits(candidate.techniques[0])
                or names_of(excluded_by(candidate.names, self._found.adopted)) != candidate.replaces
            ):
                continue
            if self._found.adopted:
                start, level = candidate.usual_start, candidate.contract
                in_time = schedule.time_for_whole_duel(start, level, candidate.promise)
            else:
                in_time = schedule.time_to_confirm_first(candidate.contract, candidate.promise)
            if in_time:
                return candidate
        return None
