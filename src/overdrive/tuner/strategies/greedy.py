"""The greedy strategy: what promises most joins the best plan so far, if it is faster and the same.

What the screening chose comes first, all of one contract in one duel. Where that comes to nothing, its techniques are
tried one by one, as all others are; where only its check does, half by half. What cannot be in one plan with adopted
techniques is tried in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from overdrive.core.contract import Contract
from overdrive.evidence.speed import LEAST_GAIN
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Settings, Technique
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected, excluded_by, names_of
from overdrive.tuner.reasons import peaks
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.screened import Gain
from overdrive.tuner.strategies import Candidate, label
from overdrive.tuner.strategies.second_chances import SecondChances
from overdrive.tuner.strategies.untried import tell_untried
from overdrive.tuner.strategies.worth import LEAST_OF_SWAP, Worth, beyond, gained_by
from overdrive.tuner.switchable import goes_ahead

# What each further setting of a technique promises, as a share of the one before. One is not tried where that is less
# than a duel could tell from nothing.
_NEXT_SETTING = 0.7
# What usually saves more than this share of a step has its duel though the screening saw nothing of it.
_EVEN_SO = 0.2


class Greedy:
    """Each candidate is judged against the best plan so far, or in place of those of it that it excludes."""

    def __init__(
        self,
        found: Findings,
        schedule: Schedule,
        progress: Progress,
        elsewhere: Mapping[str, Sequence[Gain]] = MappingProxyType({}),
        before: Greedy | None = None,
        ahead: bool = False,
    ) -> None:
        """
        Args:
            elsewhere: what techniques gained in other programs. It counts where the screening measured nothing.
            before: what was tried by this one need not be tried again.
            ahead: of what goes before the screening (see `goes_ahead`), and only until one is adopted.
        """
        self._found = found
        self._ahead = ahead
        self._screened = found.screened
        self._worth = Worth(found, schedule, elsewhere)
        self._progress = progress
        self._tried: set[str] = set(before._tried if before else ())
        self._put_off: dict[str, Candidate] = {}  # those that had no time, as if they had been tried
        earlier = before._second_chances if before else None
        self._second_chances: SecondChances = SecondChances(found, schedule, self._worth, earlier)
        self._contenders: list[Adopted] = []  # winning settings of one technique, of which one is to be taken
        self._groups = self._chosen_together()

    def ask(self) -> Candidate | None:
        while self._groups and not self._contenders:
            self._bring_forward()
            group = self._as_it_stands(self._groups[0])
            if group and (first := self._worth_more(group)):
                return self._begun(first)
            self._groups.pop(0)
            if group and group.label not in self._tried and self._worth.in_time(group):
                return group
        rated = list(self._waiting())
        if self._contenders:
            name = self._contenders[0].name
            others = [each for each, _ in rated if name in each.names]
            if others and self._worth.leaves_time_for_what_won(others[0]):
                return self._begun(others[0])
            self._adopt_the_mildest()
            return self.ask()
        in_time = [(each, rating) for each, rating in rated if self._worth.in_time(each) and self._worth.pays(each)]
        if in_time:
            return self._begun(self._worth.next_of(in_time))
        if self._ahead:
            return None
        untried: dict[str, Candidate] = {}
        for each, _ in rated:
            if each.label not in self._tried:
                self._tried.add(each.label)
                self._put_off[each.label] = each
                untried.setdefault(each.names[0], each)  # with its first settings, which were screened
        tell_untried(untried, self._found, self._worth, self._progress)
        again = self._second_chances.best(self._suits)
        return self._begun(again) if again else None

    def tell(self, candidate: Candidate, outcome: Sequence[Adopted] | Rejected) -> None:
        again = candidate.label in self._tried
        self._tried.add(candidate.label)
        if again and isinstance(outcome, Rejected) and outcome.kind == "time":
            return self._progress.outcome(f"no time was left for another attempt: {outcome.reason}")
        if again:  # it replaces its earlier rejection
            self._found.take_back(*candidate.chosen[0])
        if not isinstance(outcome, Rejected):
            first = outcome[0]
            if candidate.techniques[0].compare_all and first.duel.interval:
                self._contenders.append(first)
                self._progress.outcome(f"{first.duel.describe()}; its other settings are next")
            else:
                self._adopt(outcome)
            return
        if len(candidate.members) > 1:
            return self._divide(candidate, outcome)
        if not again:
            self._second_chances.add(candidate, outcome)
        self._reject(outcome)

    def has_time_now(self) -> bool:
        """Whether any of those that had no time has it after all: they all wait again. Or one that lost narrowly has
        the time for another attempt."""
        late = self._put_off
        self._tried -= late.keys()
        waiting = [each for each, _ in self._waiting() if each.label in late]
        now = [each for each in waiting if self._worth.in_time(each) and self._worth.pays(each)]
        if not now:
            self._tried |= late.keys()
            return self._second_chances.best(self._suits) is not None
        self._put_off = {}
        for each in late.values():
            self._found.take_back(*each.chosen[0])
        names = ", ".join(dict.fromkeys(each.names[0] for each in now))
        self._progress.outcome(f"proved sooner than there was time for: {names} may join after all")
        return True

    def _begun(self, candidate: Candidate) -> Candidate:
        """Begin a candidate. Its second attempt is the last one."""
        self._second_chances.take(candidate)
        return candidate

    def _chosen_together(self) -> list[Candidate]:
        """The screening's choice, what gains most for its time first: it may be too short for all of it.

        Beside busy neighbours the public VAE gained 2.4x by one thread, whose proof at `rounding` took all that was
        left, and 2.1x by keeping samples, which is proved in its duel.
        """
        known = catalogue()
        chosen = [(known[name], self._screened.settings[name]) for name in self._screened.choice]
        by_contract = [[each for each in chosen if each[0].contract is level] for level in Contract]
        groups = [self._group(members) for members in by_contract if members]
        return sorted(
            groups, key=self._worth.per_second, reverse=True
        )  # of equal worth the strictest, as `Contract` has them

    def _bring_forward(self) -> None:
        """What promises more than the next group, and could not be tried any more after that, comes before it; so does
        what would be proved together with it."""
        first, *later = self._groups
        pressed = [each for each in later if self._worth.pushes_out(first, each) or self._worth.proves(each, first)]
        if pressed:
            best = max(pressed, key=lambda each: each.promise)
            self._groups.sort(key=lambda each: each is not best)

    def _worth_more(self, group: Candidate) -> Candidate | None:
        """A rival, or one that the screening was not sure enough of to choose it and that is worth more for its time.

        On public nanoGPT a fused optimizer, 1.05x at `rounding`, took its duel and a minute of proof; then there was no
        time for the allocator, 1.22x [1.06, 1.42], which is proved in its duel.
        """
        waiting = [
            each
            for each, _ in self._waiting()
            if each.names[0] not in self._screened.choice
            and each.label not in self._tried
            and self._worth.in_time(each)
            and self._worth.pays(each)
        ]
        if rivals := [each for each in waiting if self._worth.rivals(each, group)]:
            return max(rivals, key=lambda each: each.promise)
        known = [each for each in waiting if not each.techniques[0].compare_all]
        measured = [each for each in known if self._screened.saving(each.names[0]) is not None]
        best = max(measured, key=self._worth.per_second, default=None)
        return best if best and self._worth.goes_before(best, group) else None

    def _as_it_stands(self, group: Candidate) -> Candidate | None:
        """In place of what was adopted since it was chosen and cannot be in one plan with it, or without its members
        that cannot, whichever promises more; None where nothing is left."""
        excluded = excluded_by(group.names, self._found.adopted)
        if not excluded:
            return group
        free = [each for each in group.members if not excluded_by((each[0].name,), excluded)]
        rest = self._group(free) if free else None
        swap = replace(group, promise=beyond(group.promise, gained_by(excluded)), replaces=names_of(excluded))
        return swap if swap.promise > max(LEAST_OF_SWAP, rest.promise if rest else 0.0) else rest

    def _group(self, members: Sequence[tuple[Technique, Settings]]) -> Candidate:
        gain = sum(self._screened.beliefs[technique.name].mean for technique, _ in members)
        return Candidate(tuple(members), 1 - math.exp(-max(0.0, gain)))

    def _divide(self, candidate: Candidate, outcome: Rejected) -> None:
        """What failed together: by halves where it was faster and not the same, one by one where it was not faster."""
        self._progress.outcome(f"not together: {outcome.reason}")
        if outcome.duel:
            self._found.keep_duel(candidate.label, outcome.duel)
        if outcome.check is None:
            return
        middle = len(candidate.members) // 2
        halves = candidate.members[:middle], candidate.members[middle:]
        self._groups = [self._group(half) for half in halves] + self._groups

    def _waiting(self) -> Iterator[tuple[Candidate, float]]:
        """The candidates that may be tried, each with its rating."""
        found, facts = self._found, self._found.facts
        for technique in catalogue().values():
            if (self._ahead and not self._goes_now(technique)) or not self._suits(technique):
                continue
            excluded = excluded_by((technique.name,), found.adopted)
            promise = self._worth.promise(technique, excluded)
            if excluded and (promise < LEAST_OF_SWAP or found.wanted() != "time"):
                continue
            for rank, settings in enumerate(technique.candidates(facts)):
                candidate = Candidate(((technique, settings),), promise, replaces=names_of(excluded))
                if not rank and (reason := self._hopeless(candidate)):
                    self._tried.add(candidate.label)
                    measured = self._screened.speedups.get(technique.name)
                    found.reject(Rejected(technique.name, settings, reason, measured=measured))
                    continue
                # Cheap techniques first where the promise is alike: compiling takes a minute.
                promised = candidate.promise * _NEXT_SETTING**rank
                if rank and promised < LEAST_GAIN and technique.name not in found.only and found.wanted() == "time":
                    break  # a duel could hardly tell that from none
                rating = promised - 0.001 * (technique.order + technique.usual_start)
                if candidate.label not in self._tried:
                    yield candidate, rating
                    continue
                if not excluded and (promise_now := self._second_chances.promise_now(candidate)) is not None:
                    # Half of it is what was promised: by one pair of processes autocast saved -4, 10 and 43 %.
                    yield candidate, (rating + promise_now) / 2

    def _goes_now(self, technique: Technique) -> bool:
        """Before the screening, as long as nothing of its kind is adopted."""
        return goes_ahead(technique, self._found) and not self._found.adopted

    def _hopeless(self, candidate: Candidate) -> str | None:
        """Why the screening leaves it out, if it was not tried yet.

        What usually saves much is tried all the same, last: if it could not act beside all others, nobody would know.
        If it made the step slower, it did act: public nanoGPT's `autocast`, 0.78x [0.75, 0.81].
        """
        (technique,) = candidate.techniques
        name = technique.name
        if candidate.label in self._tried:
            return None
        acted = name in self._screened.failed or self._screened.was_slower(name)
        if not acted and technique.expected_step_saving(self._found.facts) > _EVEN_SO:
            return None
        return self._screened.hopeless(name, [each for each in self._found.best() if each[0] not in candidate.replaces])

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
                measured = self._screened.speedups.get(technique.name)
                found.reject(Rejected(technique.name, {}, reason, kind="contract", measured=measured))
            return False
        return not technique.applies(found.facts)

    def _adopt(self, adopted: Sequence[Adopted]) -> None:
        """What won one duel. If it is several, the screening tells what each of them gains."""
        if len(adopted) > 1:
            adopted = [replace(each, share=self._screened.speedups.get(each.name)) for each in adopted]
        first, excluded = adopted[0], excluded_by(names_of(adopted), self._found.adopted)
        gain = peaks(first.duel) if first.for_memory else first.duel.describe()
        if len(adopted) == 1 and first.share:
            gain = f"{first.share.as_speedup()} in its duel and its screening together"
        self._found.adopt_all(adopted, excluded)
        place = f" in place of {' + '.join(names_of(excluded))}" if excluded else ""
        self._progress.outcome(f"adopted{place}: {gain}; {first.check.sentence}")

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
                self._found.reject(Rejected(each.name, each.settings, reason, each.duel, each.check))
        self._adopt([taken])

    def _reject(self, rejected: Rejected) -> None:
        self._tried.add(label(rejected.name, rejected.settings))
        self._found.reject(rejected)
        self._progress.outcome(f"left out: {rejected.reason}")
