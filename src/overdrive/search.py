"""Finds the fastest plan that keeps the contract: which duel to fight next, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from overdrive.arena import CANDIDATE, CONTROL, Arena, Progress
from overdrive.contract import Contract
from overdrive.evidence.equivalence import Check, differing_invariant, first_non_finite, same_bits
from overdrive.evidence.speed import Verdict
from overdrive.facts import Facts
from overdrive.findings import Adopted, Findings, Rejected
from overdrive.machine.cpu import busy_share
from overdrive.metric import Metric
from overdrive.program import Program
from overdrive.proof import Prover
from overdrive.resume import Memory
from overdrive.schedule import Schedule
from overdrive.session import Chosen
from overdrive.settlement import Settlement
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Settings, Technique
from overdrive.trials.bench import Bench
from overdrive.trials.duel import Duel
from overdrive.trials.host import MANY_FILES, House
from overdrive.trials.order import Order

# One other busy program on two cores has been seen to slow parallel operations tenfold, at random.
_BUSY = 0.2
_NARROW_LOSS = 0.95  # a candidate whose interval reaches this is tried once more when the plan has grown


class Search:
    """One greedy search. Each candidate is duelled against the best so far; only FASTER and same is adopted."""

    def __init__(
        self,
        program: Program,
        contract: Contract,
        budget: float,
        house: House,
        memory: Memory,
        progress: Progress,
        metric: Metric | None = None,
    ) -> None:
        self.found = Findings(program, contract)
        self._deadline = self.found.started + budget
        self._arena = Arena(house, memory, progress)
        self._progress = progress
        self._memory = memory
        self._facts = Facts()
        self._metric = metric
        self._plain = Order(program)
        self._prover: Prover  # these two are made when the control has shown what the program is like
        self._schedule: Schedule
        self._tried: set[str] = set()
        # Candidates that lost narrowly, with the plan they lost against: techniques help each other, so that
        # channels_last may lose in 32 bits and win in 16.
        self._second_chances: dict[str, tuple[Chosen, ...]] = {}

    def run(self) -> Findings:
        found = self.found
        if self._control():
            while (candidate := self._next()) is not None:
                self._try(*candidate)
            Settlement(found, self._arena, self._prover, self._schedule).settle()
            found.seeds = self._prover.seed_curves()
        found.seconds = time.monotonic() - found.started
        found.isolation = self._arena.house.isolation
        return found

    def _control(self) -> bool:
        """The program against itself: the noise floor, the facts, and whether it repeats itself bit for bit."""
        found = self.found
        busy = busy_share()
        if busy > _BUSY:
            found.notes.append(
                f"Other programs were using {busy:.0%} of the cores when the tune began, which makes intervals wide."
            )
        self._progress.stage("control: the program against itself")
        duel = found.control = self._arena.fight(self._plain, self._plain, CONTROL, self._deadline)
        failure = duel.old_ending or duel.ending
        if failure and len(duel.pairs) < 2:
            found.refusal, found.refusal_is_failure = _refusal(failure, duel)
            return False
        if duel.old_facts is not None:
            self._facts = duel.old_facts
        self._prover = Prover(Bench(self._arena.house), self._memory, self._facts, self._progress.stage, self._metric)
        self._schedule = Schedule(found, self._deadline, self._prover)
        if duel.old_trace and duel.new_trace:
            bad = first_non_finite(duel.old_trace)
            if bad:
                found.refusal = (
                    f"The program's own loss is not finite in step {bad}; there is nothing to keep equal to."
                )
                found.refusal_is_failure = True
                return False
            found.deterministic = same_bits(duel.old_trace, duel.new_trace)
            if not found.deterministic:
                repeats = self._prover.repeats(self._plain)
                sentence = f"The level exact cannot be seen to hold for this program: {repeats.sentence}."
                if found.contract is Contract.EXACT and repeats.level is None:
                    found.refusal, found.refusal_is_failure = f"{sentence} Try --contract rounding.", True
                    return False
                found.deterministic = repeats.level is Contract.EXACT
                if not found.deterministic:
                    found.notes.append(sentence)
        if self._arena.house.prepared_files >= MANY_FILES:
            found.notes.append(
                "The program writes a thousand files or more before its first step, and every trial does so again, "
                "since what a trial writes is thrown away. Run it once by itself, then tune: that will be quicker."
            )
            self._progress.outcome(found.notes[-1])
        noise = found.noise()
        self._progress.outcome(
            f"{duel.old_side.seconds_per_step * 1e3:.3g} ms a step"
            + (f", noise floor {noise:.1%}" if noise is not None else "")
        )
        return True

    def _next(self) -> tuple[Technique, Settings] | None:
        """The untried candidate that promises most; None when there is none, or no time for another."""
        waiting = list(self._waiting())
        if not waiting:
            return None
        if not self._schedule.time_for_another():
            for technique, settings, _ in waiting:
                if _label(technique.name, settings) not in self._tried:
                    self._reject(technique, settings, "not tried: the budget was used up")
            return None
        technique, settings, _ = max(waiting, key=lambda each: each[2])
        return technique, settings

    def _waiting(self) -> Iterator[tuple[Technique, Settings, float]]:
        chosen = {name for name, _ in self.found.best()}
        for technique in catalogue().values():
            if technique.name in chosen or technique.contract is Contract.OPEN:
                continue
            if not self.found.contract.allows(technique.contract):
                self._leave_aside(
                    technique, f"its contract is {technique.contract}, you asked for {self.found.contract}"
                )
                continue
            reason = technique.applies(self._facts)
            if reason:
                continue  # may change as the plan grows; noted at the end where it stays so
            promise = self._facts.share(*technique.relieves)
            for rank, settings in enumerate(technique.candidates(self._facts)):
                label = _label(technique.name, settings)
                # Cheap techniques first where the promise is alike: compiling takes a minute.
                rating = promise - 0.001 * technique.order - 0.2 * rank
                if label not in self._tried:
                    yield technique, settings, rating
                elif self._second_chances.get(label, self.found.best()) != self.found.best():
                    yield technique, settings, rating - 1.0  # after all that were never tried

    def _leave_aside(self, technique: Technique, reason: str) -> None:
        label = _label(technique.name, {})
        if label not in self._tried:
            self._tried.add(label)
            self.found.rejected.append(Rejected(technique.name, {}, reason))

    def _try(self, technique: Technique, settings: Settings) -> None:
        label = _label(technique.name, settings)
        again = label in self._tried
        self._tried.add(label)
        if again:
            del self._second_chances[label]
            self.found.rejected = [each for each in self.found.rejected if _label(each.name, each.settings) != label]
        old = Order(self.found.program, self.found.best())
        new = Order(self.found.program, (*self.found.best(), (technique.name, settings)))
        self._progress.stage(f"{label} against {_short(self.found.best())}")
        duel = self._arena.fight(old, new, CANDIDATE, self._schedule.selection_ends())
        reason = _why_not(duel, technique.name)
        if reason is None:
            judged = self._check(technique, duel, old, new)
            if judged.level is None:
                reason = f"does not keep its contract: {judged.sentence}"
            elif not self.found.contract.allows(judged.level):
                reason = f"only {judged.level} on this program: {judged.sentence}"
            else:
                self._adopt(technique, settings, duel, judged)
                return
        if not again and _lost_narrowly(duel):
            self._second_chances[label] = self.found.best()
        self._reject(technique, settings, reason, duel)

    def _adopt(self, technique: Technique, settings: Settings, duel: Duel, judged: Check) -> None:
        self.found.adopted.append(Adopted(technique.name, settings, duel, judged))
        if duel.new_facts is not None:
            self._facts = duel.new_facts
        assert duel.interval is not None
        self._progress.outcome(f"adopted: {duel.told()}; {judged.sentence}")

    def _reject(self, technique: Technique, settings: Settings, reason: str, duel: Duel | None = None) -> None:
        self._tried.add(_label(technique.name, settings))
        self.found.rejected.append(Rejected(technique.name, settings, reason, duel))
        self._progress.outcome(f"left out: {reason}")

    def _check(self, technique: Technique, duel: Duel, old: Order, new: Order) -> Check:
        """At which level the candidate is still the same program: the strictest of those it may keep."""
        one, other = duel.old_trace, duel.new_trace
        if one is None or other is None:
            return Check(None, "its trial ended before it could be compared")
        wrong = differing_invariant(one, other)
        bad = first_non_finite(other)
        if wrong or bad:
            return Check(None, wrong or f"its loss is not finite in step {bad}")
        check = Check(None, "")
        if technique.contract is Contract.EXACT or same_bits(one, other):
            check = self._prover.exact(old, new)
            if check.level is not None:
                return check
        levels = [level for level in (technique.contract, technique.falls_to) if level]
        if not self.found.deterministic and technique.contract is Contract.EXACT:
            levels.append(Contract.ROUNDING)  # where the program does not equal itself, this is what can be seen
        if Contract.ROUNDING in levels:
            loose = self.found.loosest() is Contract.STATISTICAL
            check = self._prover.rounding(self._plain, old if loose else self._plain, new)
            if check.level is not None:
                return check
        if Contract.STATISTICAL in levels and self.found.contract.allows(Contract.STATISTICAL):
            return self._prover.screened(self.found.quick_plain(), new, one, other)
        if Contract.STATISTICAL in levels:
            return Check(Contract.STATISTICAL, check.sentence)
        return check


def _why_not(duel: Duel, name: str) -> str | None:
    """Why a candidate is not adopted for its speed or its behaviour, or None where it won."""
    if duel.ending and not (duel.ending.kind == "ended" and duel.verdict is Verdict.FASTER):
        return str(duel.ending)
    if duel.old_ending and duel.verdict is not Verdict.FASTER:
        return f"the duel broke off ({duel.old_ending})"
    if duel.new_trace and name in duel.new_trace.left_out:
        return duel.new_trace.left_out[name]
    if duel.verdict is Verdict.FASTER:
        return None
    told = {
        Verdict.SAME: "no measurable effect",
        Verdict.SLOWER: "slower",
        Verdict.INCONCLUSIVE: "inconclusive",
    }[duel.verdict]
    return f"{told}: {duel.told()}" if duel.interval else f"{told}: too few blocks"


def _lost_narrowly(duel: Duel) -> bool:
    if duel.interval is None or duel.ending or duel.verdict is Verdict.FASTER:
        return False
    return duel.interval.high > _NARROW_LOSS


def _refusal(failure: Any, duel: Duel) -> tuple[str, bool]:
    if failure.kind == "ended" and failure.detail in ("", "after 0 steps"):
        return "The program made no training step that Overdrive could see.", False
    if failure.kind == "ended":
        return f"The program is too short to be measured: {failure.detail}.", False
    return f"The program fails by itself ({failure}).", True


def _label(name: str, settings: Settings) -> str:
    values = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({values})" if values else name


def _short(techniques: tuple[Chosen, ...]) -> str:
    return "plain + " + " + ".join(name for name, _ in techniques) if techniques else "plain"
