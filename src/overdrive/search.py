"""Finds the fastest plan that keeps the contract: which duel to fight next, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from overdrive.contract import Contract
from overdrive.evidence.attribution import attribute, configurations, without_effect
from overdrive.evidence.equivalence import Check, differing_invariant, first_non_finite, same_bits
from overdrive.evidence.speed import Verdict
from overdrive.facts import Facts
from overdrive.findings import Adopted, Findings, Rejected
from overdrive.machine.cpu import busy_share
from overdrive.metric import Metric
from overdrive.program import Program
from overdrive.proof import Prover
from overdrive.resume import Memory
from overdrive.session import Chosen
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Settings, Technique
from overdrive.trials.duel import Duel, Rules, fight, full_processes, pair_seconds
from overdrive.trials.field import FieldTooLarge, measure
from overdrive.trials.host import MANY_FILES, House
from overdrive.trials.order import Order

CONTROL = Rules(looks=(20,), processes=1, most_processes=1, patient=True)
CANDIDATE = Rules(looks=(10, 20, 40), processes=1, most_processes=2)
CONFIRMATION = Rules(looks=(10, 20), processes=3, most_processes=5, patient=True)
_FIELD_ROUNDS = 10  # blocks of every configuration that the contributions are made of
_FIELD_WARM_UP = 2.5  # seconds that each of them needs beside its start and its blocks
# Starting two processes and warming them up, where no duel has shown yet how long it takes.
_USUAL_DUEL_SECONDS = 15.0
# One other busy program on two cores has been seen to slow parallel operations tenfold, at random.
_BUSY = 0.2
_NARROW_LOSS = 0.95  # a candidate whose interval reaches this is tried once more when the plan has grown


class Progress:
    """What the search tells while it works; the terminal shows it. This one is silent."""

    def stage(self, text: str) -> None: ...

    def pair(self, duel: Duel) -> None: ...

    def outcome(self, text: str) -> None: ...


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
        self._house = house
        self._memory = memory
        self._progress = progress
        self._best: tuple[Chosen, ...] = ()
        self._facts = Facts()
        self._metric = metric
        self._plain = Order(program)
        self._prover: Prover  # made when the control has shown what the program is like
        self._tried: set[str] = set()
        # Candidates that lost narrowly, with the plan they lost against: techniques help each other, so that
        # channels_last may lose in 32 bits and win in 16.
        self._second_chances: dict[str, tuple[Chosen, ...]] = {}

    def run(self) -> Findings:
        found = self.found
        if self._control():
            while (candidate := self._next()) is not None:
                self._try(*candidate)
            self._attribute()
            self._prove()
            if self._best:
                self._confirm()
            found.seeds = self._prover.seed_curves()
        found.seconds = time.monotonic() - found.started
        found.isolation = self._house.isolation
        return found

    # -- the steps ------------------------------------------------------------------------------

    def _control(self) -> bool:
        """The program against itself: the noise floor, the facts, and whether it repeats itself bit for bit."""
        found = self.found
        busy = busy_share()
        if busy > _BUSY:
            found.notes.append(
                f"Other programs were using {busy:.0%} of the cores when the tune began, which makes intervals wide."
            )
        self._progress.stage("control: the program against itself")
        duel = found.control = self._fight(self._plain, self._plain, CONTROL, self._deadline)
        failure = duel.old_ending or duel.ending
        if failure and len(duel.pairs) < 2:
            found.refusal, found.refusal_is_failure = _refusal(failure, duel)
            return False
        if duel.old_facts is not None:
            self._facts = duel.old_facts
        self._prover = Prover(self._house, self._memory, self._facts, self._progress.stage, self._metric)
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
        if self._house.prepared_files >= MANY_FILES:
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
        if not self._time_for_another():
            for technique, settings, _ in waiting:
                if _label(technique.name, settings) not in self._tried:
                    self._reject(technique, settings, "not tried: the budget was used up")
            return None
        technique, settings, _ = max(waiting, key=lambda each: each[2])
        return technique, settings

    def _waiting(self) -> Iterator[tuple[Technique, Settings, float]]:
        chosen = {name for name, _ in self._best}
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
                elif self._second_chances.get(label, self._best) != self._best:
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
        old = Order(self.found.program, self._best)
        new = Order(self.found.program, (*self._best, (technique.name, settings)))
        self._progress.stage(f"{label} against {_short(self._best)}")
        duel = self._fight(old, new, CANDIDATE, self._selection_deadline())
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
            self._second_chances[label] = self._best
        self._reject(technique, settings, reason, duel)

    def _adopt(self, technique: Technique, settings: Settings, duel: Duel, judged: Check) -> None:
        self._best = (*self._best, (technique.name, settings))
        self.found.adopted.append(Adopted(technique.name, settings, duel, judged))
        if duel.new_facts is not None:
            self._facts = duel.new_facts
        assert duel.interval is not None
        self._progress.outcome(f"adopted: {_times(duel)}; {judged.sentence}")

    def _reject(self, technique: Technique, settings: Settings, reason: str, duel: Duel | None = None) -> None:
        self._tried.add(_label(technique.name, settings))
        self.found.rejected.append(Rejected(technique.name, settings, reason, duel))
        self._progress.outcome(f"left out: {reason}")

    def _attribute(self) -> None:
        """What each technique of the plan gained, all measured together; what gains nothing is dropped."""
        while len(self._best) > 1:
            names = tuple(name for name, _ in self._best)
            chosen = dict(self._best)
            wanted = self._affordable_configurations(names)
            if not wanted:
                self.found.notes.append("What each technique gained is told by its own duel: no budget for more.")
                return
            self._progress.stage(f"contributions: {len(wanted)} combinations of {len(names)} techniques in turn")
            orders = [
                Order(self.found.program, tuple((name, chosen[name]) for name in names if name in subset))
                for subset in wanted
            ]
            try:
                deadline = self._proof_deadline()
                seconds = measure(self._house, orders, _FIELD_ROUNDS, deadline, total_steps=self._total_steps())
            except FieldTooLarge as error:
                self.found.notes.append(f"What each technique gained is told by its own duel: {error}.")
                return
            if len(seconds[0]) < _FIELD_ROUNDS // 2:
                return
            self.found.attribution = attribute(names, dict(zip(wanted, seconds, strict=True)))
            idle = without_effect(self.found.attribution)
            if not idle:
                return
            self._drop(idle[0], "no measurable effect in the whole plan, and a simpler plan wins the tie")

    def _total_steps(self) -> int | None:
        """The program's length in steps, where a duel came to its end."""
        duels = [self.found.control, *(each.duel for each in self.found.adopted)]
        return max((duel.total_steps for duel in duels if duel and duel.total_steps), default=None)

    def _affordable_configurations(self, names: tuple[str, ...]) -> list[frozenset[str]]:
        """All combinations if there is time for them, else the most telling ones, else none."""
        left = self._proof_deadline() - time.monotonic()
        for most in (16, 2 * len(names) + 2):
            wanted = configurations(names, most)
            if len(wanted) * self._configuration_seconds() < left:
                return wanted
        return []

    def _configuration_seconds(self) -> float:
        control = self.found.control
        start = control.old_side.setup_seconds if control else _USUAL_DUEL_SECONDS / 2
        return start + _FIELD_WARM_UP + 0.3 * _FIELD_ROUNDS

    def _drop(self, name: str, reason: str) -> None:
        """Take an adopted technique out of the plan again."""
        found = self.found
        out = next(each for each in found.adopted if each.name == name)
        found.adopted = [each for each in found.adopted if each is not out]
        found.dropped.append(Rejected(out.name, out.settings, reason, out.duel))
        found.attribution = None  # it told of another plan
        self._best = tuple(each for each in self._best if each[0] != name)
        self._progress.outcome(f"dropped {name}: {reason}")

    def _prove(self) -> None:
        """The whole plan against the untouched program. What cannot be proved is taken out, the loosest first."""
        found = self.found
        while self._best:
            level = found.loosest()
            best = Order(found.program, self._best)
            if level is Contract.EXACT:
                proof = self._prover.exact(self._plain, best)
            elif level is Contract.ROUNDING:
                proof = self._prover.rounding(self._plain, self._plain, best)
            else:
                proof = self._prover.statistical(self._quick_plain(), best, self._confirmation_begins())
            found.proof = proof
            if proof.level is not None:
                self._progress.outcome(f"the whole plan keeps {proof.level}: {proof.sentence}")
                return
            last = [each for each in found.adopted if each.check.level is level][-1]
            self._drop(last.name, f"the whole plan with it was not proved {level}: {proof.sentence}")

    def _quick_plain(self) -> Order:
        """The program under the techniques that were proved exact: the same runs, sooner done."""
        exact = {each.name for each in self.found.adopted if each.check.level is Contract.EXACT}
        first: list[Chosen] = []
        for each in self._best:
            if each[0] not in exact:
                break  # those adopted later were compared with a plan that was not exact
            first.append(each)
        return Order(self.found.program, tuple(first))

    def _confirm(self) -> None:
        """The chosen plan against the untouched program, in fresh processes, on data of its own."""
        found = self.found
        self._progress.stage("confirmation: the whole plan against the untouched program")
        best = Order(found.program, self._best)
        duel = found.confirmation = self._fight(self._plain, best, CONFIRMATION, self._deadline)
        processes = full_processes(duel)
        if processes < CONFIRMATION.processes:
            duel.verdict = Verdict.INCONCLUSIVE
            found.notes.append(
                f"The confirmation came to {processes} of {CONFIRMATION.processes} process pairs before the budget "
                "was used up: nothing is established. A larger --budget would."
            )
        if duel.old_trace and duel.new_trace:
            wrong = differing_invariant(duel.old_trace, duel.new_trace)
            bad = first_non_finite(duel.new_trace)
            if bad:
                wrong = f"its loss is not finite in step {bad}"
            if found.loosest() is Contract.EXACT and not same_bits(duel.old_trace, duel.new_trace):
                wrong = wrong or "it ends in another state, though it was proved exact"
            if wrong:
                found.proof = Check(None, f"in the confirmation, {wrong}")
                found.notes.append(f"The whole plan is not the same program: {found.proof.sentence}.")
        elif duel.ending or duel.old_ending:
            found.notes.append(f"The confirmation broke off ({duel.ending or duel.old_ending}).")
        self._progress.outcome(_times(duel) if duel.interval else "nothing established")

    # -- means ----------------------------------------------------------------------------------

    def _fight(self, old: Order, new: Order, rules: Rules, deadline: float) -> Duel:
        key = f"{rules.processes}: {old.name()} | {new.name()}"
        known = self._memory.duel(key, old, new)
        if known is not None:
            self._progress.outcome("(known from a tune that was broken off)")
            return known
        duel = fight(self._house, old, new, rules, deadline, self._progress.pair)
        if time.monotonic() < deadline:  # a duel that ran out of time is fought again
            self._memory.remember_duel(key, duel)
        return duel

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
            return self._prover.screened(self._quick_plain(), new, one, other)
        if Contract.STATISTICAL in levels:
            return Check(Contract.STATISTICAL, check.sentence)
        return check

    def _confirmation_seconds(self) -> float:
        """How long the confirmation will take, from what the control showed."""
        control = self.found.control
        if control is None or not control.pairs:
            return 0.0
        pairs = CONFIRMATION.looks[0] * CONFIRMATION.processes
        start = control.old_side.setup_seconds + control.new_side.setup_seconds  # they start at once, on shared cores
        gain = 1.0
        for adopted in self.found.adopted:
            gain *= adopted.duel.interval.estimate if adopted.duel.interval else 1.0
        return CONFIRMATION.processes * (start + 4.0) + pairs * pair_seconds(control.old_side.seconds_per_step, gain)

    def _confirmation_begins(self) -> float:
        return self._deadline - self._confirmation_seconds()

    def _proof_deadline(self) -> float:
        """When the proof of the whole plan must begin, so that there is time for it and for the confirmation."""
        return self._confirmation_begins() - self._prover.seconds_needed(self.found.loosest())

    def _selection_deadline(self) -> float:
        """When no further candidate is tried: the contributions want some time too."""
        combinations = 2 * len(self._best) + 2 if len(self._best) > 1 else 0
        return self._proof_deadline() - combinations * self._configuration_seconds()

    def _time_for_another(self) -> bool:
        control = self.found.control
        usual = _USUAL_DUEL_SECONDS
        if control is not None:
            usual = max(5.0, control.old_side.setup_seconds + control.new_side.setup_seconds)
        return time.monotonic() + usual < self._selection_deadline()


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
    return f"{told}: {_times(duel)}" if duel.interval else f"{told}: too few blocks"


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


def _times(duel: Duel) -> str:
    interval = duel.interval
    assert interval is not None
    return f"{interval.estimate:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def _label(name: str, settings: Settings) -> str:
    values = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({values})" if values else name


def _short(techniques: tuple[Chosen, ...]) -> str:
    return "plain + " + " + ".join(name for name, _ in techniques) if techniques else "plain"
