"""The greedy strategy: what promises most joins the best plan so far, if it is faster and the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.evidence.speed import LEAST_GAIN
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.techniques.technique import Technique
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Adopted, Findings, Rejected
from overdrive.tuner.reasons import lost_narrowly, peaks
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.screener import Screened
from overdrive.tuner.strategies import Candidate, label

# A candidate that lost narrowly is tried once more, when the plan has become so many times as fast since: what was a
# small share of a step may then be a large one.
_OTHER_PROGRAM = 1.1
# What each further setting of a technique promises, as a share of the one before. One is not tried where that is less
# than a duel could tell from nothing.
_NEXT_SETTING = 0.7
# What usually saves more than this share of a step has its duel though the screening saw nothing of it.
_EVEN_SO = 0.2
# What a technique saves where it helps counts for as much beside what others were measured at: most do not help (the
# prior of the screening, evidence/screening/prior.py).
_HELPS = 0.4


class Greedy:
    """Each candidate is judged against the best plan so far; what is adopted stays until the plan is finalised."""

    def __init__(
        self, found: Findings, schedule: Schedule, progress: Progress, screened: Screened | None = None
    ) -> None:
        """`screened`: what is known of candidates; of all others what they usually save is believed."""
        self._found = found
        self._screened = screened or Screened()
        self._schedule = schedule
        self._progress = progress
        self._tried: set[str] = set()
        # Candidates that lost narrowly, with the plan's gain until then and what they saved as far as could be seen:
        # techniques help each other, so that autocast may lose in one memory order and win in the other.
        self._second_chances: dict[str, tuple[float, float]] = {}
        self._contenders: list[Adopted] = []  # winning settings of one technique, of which one is to be taken

    def ask(self) -> Candidate | None:
        rated = list(self._waiting())
        if self._contenders:
            name = self._contenders[0].name
            others = [each for each, _ in rated if each.technique.name == name]
            if others and self._schedule.time_for_another(level=others[0].technique.contract):
                return self._begun(others[0])
            self._adopt_the_mildest()
            return self.ask()
        in_time = [(each, rating) for each, rating in rated if self._in_time(each)]
        if in_time:
            return self._begun(max(in_time, key=lambda each: each[1])[0])
        untried = {each.technique.name: each for each, _ in rated if each.label not in self._tried}
        for each in untried.values():
            self._tried.add(each.label)
            reason = f"not tried: {self._lacks(each)}"
            self._found.rejected.append(Rejected(each.technique.name, each.settings, reason))
        if untried:
            self._progress.outcome(f"no time is left to try {', '.join(untried)}")
        return None

    def tell(self, candidate: Candidate, outcome: Adopted | Rejected) -> None:
        again = candidate.label in self._tried
        self._tried.add(candidate.label)
        if isinstance(outcome, Adopted):
            if candidate.technique.compare_all and outcome.duel.interval:
                self._contenders.append(outcome)
                self._progress.outcome(f"{outcome.duel.describe()}; its other settings are next")
            else:
                self._adopt(outcome)
            return
        duel = outcome.duel
        if not again and duel and lost_narrowly(duel) and duel.interval:
            self._second_chances[candidate.label] = self._found.gain(), 1 - 1 / duel.interval.estimate
        self._reject(outcome)

    def _begun(self, candidate: Candidate) -> Candidate:
        """Begin a candidate. Its second attempt is the last one, and replaces its earlier rejection."""
        if self._second_chances.pop(candidate.label, None):
            rejected = self._found.rejected
            self._found.rejected = [each for each in rejected if label(each.name, each.settings) != candidate.label]
        return candidate

    def _lacks(self, candidate: Candidate) -> str:
        technique = candidate.technique
        if not self._schedule.time_for_another(technique.usual_start):
            return "too little of the budget is left to try and confirm it"
        missing = self._schedule.seconds_missing(technique.usual_start, technique.contract, candidate.promise)
        more = math.ceil(missing / 60)
        return f"no time is left for a {technique.contract} proof: the budget lacks {more} min at least"

    def _in_time(self, each: Candidate) -> bool:
        return self._schedule.time_for_another(each.technique.usual_start, each.technique.contract, each.promise)

    def _waiting(self) -> Iterator[tuple[Candidate, float]]:
        """The candidates that may be tried, each with its rating."""
        found, facts = self._found, self._found.facts
        for technique in catalogue().values():
            if not self._suits(technique):
                continue
            candidate = Candidate(technique, {}, self._promise(technique))
            for rank, settings in enumerate(technique.candidates(facts)):
                candidate = replace(candidate, settings=settings)
                if not rank and (reason := self._hopeless(candidate)):
                    self._tried.add(candidate.label)
                    found.rejected.append(Rejected(technique.name, settings, reason))
                    continue
                # Cheap techniques first where the promise is alike: compiling takes a minute.
                promised = candidate.promise * _NEXT_SETTING**rank
                if rank and promised < LEAST_GAIN and technique.name not in found.only and found.wanted() == "time":
                    break  # a duel could hardly tell that from none
                rating = promised - 0.001 * (technique.order + technique.usual_start)
                if candidate.label not in self._tried:
                    yield candidate, rating
                    continue
                gain, saved = self._second_chances.get(candidate.label, (math.inf, 0.0))
                if found.gain() > _OTHER_PROGRAM * gain:
                    # Half of it is what was promised: by one pair of processes autocast saved -4, 10 and 43 %.
                    yield candidate, (rating + saved) / 2

    def _promise(self, technique: Technique) -> float:
        """The share of a step that it is expected to save."""
        saving = self._screened.saving(technique.name)
        if saving is not None:
            return max(0.0, saving)
        return technique.usual_saving(self._found.facts) * (_HELPS if self._screened.beliefs else 1.0)

    def _hopeless(self, candidate: Candidate) -> str | None:
        """Why the screening leaves it out, if it was not tried yet.

        What usually saves much is tried all the same, last: if it could not act beside all others, nobody would know.
        """
        name = candidate.technique.name
        if candidate.label in self._tried:
            return None
        if name not in self._screened.failed and candidate.technique.usual_saving(self._found.facts) > _EVEN_SO:
            return None
        return self._screened.hopeless(name)

    def _suits(self, technique: Technique) -> bool:
        """Whether it may be tried now; what its contract forbids is noted once, what the facts forbid at the end."""
        found = self._found
        chosen = {name for name, _ in found.best()}
        if not found.may_be_tried(technique) or technique.name in chosen or found.wanted() not in technique.aims:
            return False
        if technique.contract is not Contract.OPEN and not found.contract.allows(technique.contract):
            if technique.name not in self._tried:
                self._tried.add(technique.name)
                reason = f"its contract is {technique.contract}, you asked for {found.contract}"
                found.rejected.append(Rejected(technique.name, {}, reason))
            return False
        return not technique.applies(found.facts) and not conflict(technique.name, chosen)

    def _adopt(self, adopted: Adopted) -> None:
        self._found.adopt(adopted)
        gain = peaks(adopted.duel) if adopted.for_memory else adopted.duel.describe()
        self._progress.outcome(f"adopted: {gain}; {adopted.check.sentence}")

    def _adopt_the_mildest(self) -> None:
        """Adopt the first of the contenders, in the order of their candidates, that is as fast as the fastest."""
        contenders, self._contenders = self._contenders, []
        fastest = max(each.duel.interval.estimate for each in contenders if each.duel.interval)
        taken = next(each for each in contenders if each.duel.interval and each.duel.interval.high >= fastest)
        for each in contenders:
            if each is not taken:
                reason = (
                    f"{each.duel.describe()}; {label(taken.name, taken.settings)} is taken: {taken.duel.describe()}"
                )
                self._found.rejected.append(Rejected(each.name, each.settings, reason, each.duel, each.check))
        self._adopt(taken)

    def _reject(self, rejected: Rejected) -> None:
        self._tried.add(label(rejected.name, rejected.settings))
        self._found.rejected.append(rejected)
        self._progress.outcome(f"left out: {rejected.reason}")
