"""What a candidate is worth: the share of a step that it is expected to save, against the time that trying it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from overdrive.core.contract import Contract
from overdrive.evidence.speed import LEAST_GAIN
from overdrive.techniques.catalogue import conflict
from overdrive.techniques.technique import Technique
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.screened import Gain
from overdrive.tuner.strategies import Candidate

# What a technique saves where it helps counts for as much beside what others were measured at: most do not help (the
# prior of the screening, evidence/screening/prior.py).
_HELPS = 0.4
# What cannot be in one plan with the screening's choice is its rival where it promises such a share of what that does:
# what is only promised may be twice as much.
_RIVAL = 0.5
# What is to take the place of others is tried where so much more is to be expected of it, by the odds that it gains
# nothing, too. Of a small CNN with `channels_last`, 3.1x by its duel, 2.6 % was, and an engine was 2.4x as fast.
LEAST_OF_SWAP = 0.01
# Of public makemore `compile`, 1.29x, was tried after five that gained nothing, and no time was left for its proof.
_USUAL_COUNTS = 4  # programs, for as many as which counts what a technique usually saves


class Worth:
    """By the screening, else by what techniques gained in other programs (`elsewhere`) and usually save."""

    def __init__(self, found: Findings, schedule: Schedule, elsewhere: Mapping[str, Sequence[Gain]]) -> None:
        self._found = found
        self._screened = found.screened
        self._schedule = schedule
        self._elsewhere = elsewhere

    def promise(self, technique: Technique, excluded: Sequence[Adopted] = ()) -> float:
        """The share of a step that it is expected to save; in place of those of the plan that it excludes, beyond what
        they save."""
        gained = gained_by(excluded)
        saving = self._screened.saving(technique.name)
        if saving is not None:
            return beyond(saving, gained)
        usual = _hoped_beyond(technique.expected_step_saving(self._found.facts), gained)
        gains = self._elsewhere.get(technique.name, ())
        saved = math.fsum(beyond(1 - math.exp(-gain), gained) for gain, _ in gains)  # what gains nothing is not adopted
        counts = _USUAL_COUNTS * (_HELPS if self._screened.beliefs else 1.0)
        return (counts * usual + saved) / (_USUAL_COUNTS + len(gains)) if usual else 0.0

    def pays(self, each: Candidate) -> bool:
        """Whether it is expected to save more, over the runs that the tune is for, than trying it takes."""
        named = self._found.only.intersection(each.names)
        return bool(named) or self._found.wanted() != "time" or self._schedule.pays(each.promise)

    def in_time(self, each: Candidate) -> bool:
        """Whether it can be tried, proved and confirmed in what is left of the budget."""
        if self.is_in_vain(each):
            return False
        return self._schedule.time_for_another(each.usual_start, each.contract, each.promise)

    def is_in_vain(self, each: Candidate) -> str:
        """Why its duel would be in vain, whatever the time; empty where it would not."""
        return self._schedule.cannot_prove(each.contract)

    def leaves_time_for_what_won(self, other: Candidate) -> bool:
        """Whether another setting can be tried, and what has won by then be confirmed."""
        in_time = self._schedule.time_for_another(level=other.contract)
        return in_time and (self._found.wanted() != "time" or self._schedule.time_for_all(self.seconds(other)))

    def per_second(self, candidate: Candidate) -> float:
        """What it is expected to gain, on the logarithm of speed, for each second that it takes."""
        return _gain(candidate) / self.seconds(candidate)

    def goes_before(self, first: Candidate, then: Candidate) -> bool:
        """Whether the first gains more for its time, and does not push out what promises more."""
        return self.per_second(first) > self.per_second(then) and not self.pushes_out(first, then)

    def pushes_out(self, first: Candidate, then: Candidate) -> bool:
        """Whether the other promises more, is in time yet, and would not be after the first.

        Of public MNIST `hugepages`, 1.08x, took the 41 s after which `autocast`, 1.44x, could not be proved any more.
        """
        if then.promise <= first.promise or not self.in_time(then):
            return False
        start = then.usual_start + self.seconds(first)
        return not self._schedule.time_for_another(start, then.contract, then.promise)

    def proves(self, first: Candidate, then: Candidate) -> bool:
        """Whether the proof of the first, by seeds, is to be that of the other, too, which needs none then."""
        if first.contract is not Contract.STATISTICAL or then.contract is not Contract.ROUNDING:
            return False
        if self._found.loosest() is Contract.STATISTICAL or first.promise < LEAST_GAIN or self.is_in_vain(first):
            return False
        return self._schedule.time_to_be_joined(first.promise, then.contract)

    def seconds(self, candidate: Candidate) -> float:
        """That it takes until it is adopted."""
        return self._schedule.durations.to_adopt(candidate.contract, candidate.promise, candidate.usual_start)

    def next_of(self, rated: Sequence[tuple[Candidate, float]]) -> Candidate:
        """What promises most; or, where there is no time for all, what gains most for its time, if it leaves the time
        for that, or if what can be tried in its place promises more together.

        Of public siamese, 0.6 s a step, `compile` came first, 11 % by its promise: 93 s of the 160 that were left.
        """
        best = max(rated, key=lambda each: each[1])[0]
        schedule = self._schedule
        # What cannot be in one plan with the best comes after it: of a CNN that answers, `fast_max_pool`, 1.26x, came
        # before the engines, and kept them out.
        candidates = [each for each, _ in rated if not any(conflict(name, best.names) for name in each.names)]
        if schedule.time_for_all(math.fsum(map(self.seconds, candidates))) or self._found.wanted() != "time":
            return best
        by_worth = sorted(candidates, key=self.per_second, reverse=True)
        first = by_worth[0]
        if schedule.time_for_all(self.seconds(first) + self.seconds(best)):
            return first
        left, gain = self.seconds(best), 0.0
        for each in by_worth:
            if each is not best and self.seconds(each) <= left:
                left, gain = left - self.seconds(each), gain + _gain(each)
        return first if gain > _gain(best) else best

    def rivals(self, each: Candidate, group: Candidate) -> bool:
        """Whether `each` was not screened, cannot be in one plan with the group, and is to be tried before that.

        Of a small CNN that answers, `autocast`, 1.19x, joined first, and kept out an engine in int8, 2.4x.
        """
        if self._screened.saving(each.names[0]) is not None or not conflict(each.names[0], group.names):
            return False
        both = self.seconds(each) + self.seconds(group)
        near = each.promise > _RIVAL * group.promise and self._schedule.time_for_all(both)
        return each.promise > group.promise or near

    def lacks(self, candidate: Candidate) -> tuple[str, float]:
        """Why it is not tried, and the seconds that the budget lacks to try and confirm it; 0: that is not why."""
        if why := self.is_in_vain(candidate):
            return why, 0.0
        if not self.pays(candidate):
            return f"over {self._found.runs} runs it is expected to gain less than trying it takes (--runs)", 0.0
        start, contract = candidate.usual_start, candidate.contract
        missing = max(0.0, self._schedule.seconds_missing(start, contract, candidate.promise))
        lacks = max(missing, self._schedule.seconds_missing_to_establish(self.seconds(candidate)))
        if not self._schedule.time_for_another(start):
            return "too little of the budget is left to try and confirm it", lacks
        more = math.ceil(missing / 60)
        return f"no time is left for a {contract} proof: the budget lacks {more} min at least", lacks


def _gain(candidate: Candidate) -> float:
    """What it promises, on the logarithm of speed."""
    return -math.log1p(-candidate.promise)


def gained_by(excluded: Sequence[Adopted]) -> float:
    """How many times as fast these make a step together. Infinitely, where one of them keeps its place whatever comes:
    the program needs it, or its memory does, or what it gains is not known."""
    if any(each.for_memory or each.needed or not each.speedup for each in excluded):
        return math.inf
    return max(1.0, math.prod(each.speedup.estimate for each in excluded if each.speedup))


def beyond(saving: float, gained: float) -> float:
    """The share of a step of the plan so far that is saved by what takes the place of what gained so many times.

    Args:
        saving: the share of a step that it saves without them.
    """
    return max(0.0, 1 - (1 - saving) * gained)


def _hoped_beyond(saving: float, gained: float) -> float:
    """The same where the saving is only what is usual: it may be more, or less.

    Taken is that the logarithm of a speedup has an exponential distribution. Then the mean of the share that is saved
    beyond `gained`, where that is more than nothing, is this; and the usual share where nothing is replaced.
    """
    return saving * gained ** ((saving - 1) / saving) if saving else 0.0
