"""Finds the fastest plan that keeps the contract: which duel to fight next, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.metric import Metric
from overdrive.core.objective import TIME, Objective, size
from overdrive.core.program import Program
from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import OPEN, Check, differing_invariant, first_non_finite, same_bits
from overdrive.evidence.speed import LEAST_GAIN
from overdrive.proof.budget import ProofBudget
from overdrive.proof.prover import Prover
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.techniques.technique import Settings, Technique
from overdrive.trials.checkpoint import Memory
from overdrive.trials.duel import Duel
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import MANY_FILES
from overdrive.trials.untimed import UntimedRunner
from overdrive.tuner.duel_runner import CANDIDATE, CONTROL, WEIGHED, DuelRunner, Progress
from overdrive.tuner.finalise import Finaliser
from overdrive.tuner.findings import Adopted, Findings, Rejected
from overdrive.tuner.formats import formats_tried
from overdrive.tuner.neighbours import neighbours
from overdrive.tuner.oom_recovery import OomRecovery
from overdrive.tuner.reasons import lost_narrowly, no_faster, no_smaller, peaks
from overdrive.tuner.schedule import Schedule
from overdrive.core.settings import Chosen

# A candidate that lost narrowly is tried once more, when the plan has become so many times as fast since: what was a
# small share of a step may then be a large one.
_OTHER_PROGRAM = 1.1
_PROOF_SHARE = 0.4  # of the budget, which a statistical proof may take: its runs are made that short
_DIARY_SHARE = 0.06  # likewise the steps of one trial of another proof, of which most candidates need one
# What each further setting of a technique promises, as a share of the one before. One is not tried where that is less
# than a duel could tell from nothing.
_NEXT_SETTING = 0.7


class Search:
    """One greedy search. Each candidate is duelled against the best so far; only FASTER and same is adopted."""

    def __init__(
        self,
        program: Program,
        contract: Contract,
        budget: float,
        pool: TrialPool,
        memory: Memory,
        progress: Progress,
        metric: Metric | None = None,
        objective: Objective = TIME,
        only: frozenset[str] = frozenset(),
    ) -> None:
        """`only`: the techniques that may be tried, open ones too; empty: all but the open ones."""
        self.found = Findings(program, contract, objective, only)
        self._deadline = self.found.started + budget
        self._duels = DuelRunner(pool, memory, progress)
        self._progress = progress
        self._memory = memory
        self._facts = Facts()
        self._metric = metric
        self._prover: Prover  # these two are made when the control has shown what the program is like
        self._schedule: Schedule
        self._tried: set[str] = set()
        # Candidates that lost narrowly, with the plan's gain until then and what they saved as far as could be seen:
        # techniques help each other, so that autocast may lose in one memory order and win in the other.
        self._second_chances: dict[str, tuple[float, float]] = {}
        self._contenders: list[Adopted] = []  # winning settings of one technique, of which one is to be taken

    def run(self) -> Findings:
        found = self.found
        found.notes += neighbours()
        if self._control():
            while (candidate := self._next()) is not None:
                self._try(*candidate)
            Finaliser(found, self._duels, self._prover, self._schedule).settle()
            found.seeds = self._prover.seed_curves()
            self._measure_errors()
        found.seconds = time.monotonic() - found.started
        found.isolation = self._duels.pool.isolation
        return found

    def _control(self) -> bool:
        """The program against itself: the noise floor, the facts, and whether it repeats itself bit for bit."""
        found = self.found
        plain = found.reference()
        self._progress.stage("control: the program against itself")
        duel = found.control = self._duels.run_duel(plain, plain, CONTROL, self._deadline)
        failure = duel.old_exit_reason or duel.exit_reason
        if failure and failure.kind == "oom":
            return self._after_running_out(failure)
        if failure and len(duel.pairs) < 2:
            found.refusal, found.refusal_is_failure = _refusal(failure, duel)
            return False
        if duel.apart:
            found.notes.append(
                "Two of the program at once do not fit into the memory: whole processes were run in turn instead, "
                "which takes longer and leaves wider intervals."
            )
        if duel.old_facts is not None:
            self._facts = duel.old_facts
        self._prover = Prover(
            UntimedRunner(self._duels.pool),
            self._memory,
            self._facts,
            self._progress.stage,
            self._metric,
            proof_budget=ProofBudget(
                _PROOF_SHARE * (self._deadline - found.started),
                _DIARY_SHARE * (self._deadline - found.started),
                duel.old_side.setup_seconds,
                duel.total_steps,
                duel.apart,
                duel.old_side.peak_memory,
            ),
        )
        self._schedule = Schedule(found, self._deadline, self._prover)
        self._prover.end_by(self._deadline)
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
                repeats = self._prover.repeats(plain)
                sentence = f"The level exact cannot be seen to hold for this program: {repeats.sentence}."
                if found.contract is Contract.EXACT and repeats.level is None:
                    found.refusal, found.refusal_is_failure = f"{sentence} Try --contract rounding.", True
                    return False
                found.deterministic = repeats.level is Contract.EXACT
                if not found.deterministic:
                    found.notes.append(sentence)
        if self._duels.pool.prepared_files >= MANY_FILES:
            found.notes.append(
                "The program writes a thousand files or more before its first step, and every trial does so again, "
                "since what a trial writes is thrown away. Run it once by itself, then tune: that will be quicker."
            )
            self._progress.outcome(found.notes[-1])
        noise = found.noise()
        self._progress.outcome(
            f"{duel.old_side.seconds_per_step * 1e3:.3g} ms a step"
            + (f", noise floor {noise:.1%}" if noise is not None else "")
            + (f", {size(found.peak())} at the peak" if found.peak() else "")
        )
        return True

    def _after_running_out(self, failure: ExitReason) -> bool:
        """The control ran out of memory, one process at a time too."""
        found = self.found
        if found.needed():
            found.notes.append("With that it runs, and out of memory later on: nothing faster was looked for.")
            return False
        oom_recovery = OomRecovery(found, self._duels, self._deadline)
        if oom_recovery.run():
            return self._control()
        found.refusal_is_failure = True
        found.refusal = f"The program runs out of memory by itself ({failure.detail}), and {oom_recovery.in_vain()}."
        return False

    def _measure_errors(self) -> None:
        """How far each number format that was tried lies from fp64, as far as what is left of the budget allows."""
        specs = [TrialSpec(self.found.program, (chosen,)) for chosen in formats_tried(self.found)]
        plain = self.found.reference()
        for spec in [plain, *specs] if specs else []:
            if not self._schedule.time_for_errors():
                return
            self._progress.stage(f"errors against fp64: {spec.name()}")
            error = self._prover.error_against_fp64(plain, spec)
            if error is not None:
                self.found.errors[spec.name()] = error

    def _next(self) -> tuple[Technique, Settings] | None:
        """The untried candidate that promises most; None when there is none, or no time for another."""
        waiting = list(self._waiting())
        if self._contenders:
            name = self._contenders[0].name
            others = [each for each in waiting if each[0].name == name]
            if others and self._schedule.time_for_another(level=others[0][0].contract):
                return others[0][:2]
            self._adopt_the_mildest()
            return self._next()
        if not waiting:
            return None
        in_time = [each for each in waiting if self._in_time(each[0])]
        if not in_time:
            untried = {each[0].name: each for each in waiting if _label(each[0].name, each[1]) not in self._tried}
            for technique, settings, _ in untried.values():
                level, promise = technique.contract, self._promise(technique)
                if self._schedule.time_for_another(technique.usual_start):
                    more = math.ceil(self._schedule.seconds_missing(technique.usual_start, level, promise) / 60)
                    reason = f"no time is left for a {level} proof: the budget lacks {more} min at least"
                else:
                    reason = "too little of the budget is left to try and confirm it"
                self._reject(technique, settings, f"not tried: {reason}")
            return None
        return max(in_time, key=lambda each: each[2])[:2]

    def _in_time(self, each: Technique) -> bool:
        return self._schedule.time_for_another(each.usual_start, each.contract, self._promise(each))

    def _waiting(self) -> Iterator[tuple[Technique, Settings, float]]:
        chosen = {name for name, _ in self.found.best()}
        for technique in catalogue().values():
            asked_for = technique.name in self.found.only
            if self._facts.framework not in technique.frameworks:
                continue
            by_name_only = self.found.only or technique.contract is Contract.OPEN
            if technique.name in chosen or (by_name_only and not asked_for) or self._wanted() not in technique.aims:
                continue
            if technique.contract is not Contract.OPEN and not self.found.contract.allows(technique.contract):
                self._leave_aside(
                    technique, f"its contract is {technique.contract}, you asked for {self.found.contract}"
                )
                continue
            reason = technique.applies(self._facts)
            if reason or conflict(technique.name, chosen):
                continue  # may change as the plan grows; noted at the end where it stays so
            promise = self._promise(technique)
            for rank, settings in enumerate(technique.candidates(self._facts)):
                label = _label(technique.name, settings)
                # Cheap techniques first where the promise is alike: compiling takes a minute.
                promised = promise * _NEXT_SETTING**rank
                if rank and promised < LEAST_GAIN and not asked_for and self._wanted() == "time":
                    break  # a duel could hardly tell that from none
                rating = promised - 0.001 * (technique.order + technique.usual_start)
                if label not in self._tried:
                    yield technique, settings, rating
                    continue
                gain, saved = self._second_chances.get(label, (math.inf, 0.0))
                if self.found.gain() > _OTHER_PROGRAM * gain:
                    # Half of it is what was promised: by one pair of processes autocast saved -4, 10 and 43 %.
                    yield technique, settings, (rating + saved) / 2

    def _promise(self, technique: Technique) -> float:
        """The share of a step that it usually saves where these parts of a step take so much of it."""
        return self._facts.share(*technique.targets) * technique.expected_saving

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
        judged: Check | None = None
        old = TrialSpec(self.found.program, self.found.best())
        new = TrialSpec(self.found.program, (*self.found.best(), (technique.name, settings)))
        self._progress.stage(f"{label} against {_short(self.found.best())}")
        wanted = self._wanted()
        rules = CANDIDATE if wanted == "time" else WEIGHED
        pairs = technique.processes(self._facts)
        if wanted == "time" and pairs > 1:
            rules = replace(rules, looks=rules.looks[:2], processes=pairs, most_processes=pairs)
        ends = self._schedule.selection_ends(technique.contract, self._promise(technique))
        duel = self._duels.run_duel(old, new, rules, ends)
        if wanted == "time":
            reason = no_faster(duel, technique.name) or self._too_large(duel)
        else:
            reason = no_smaller(duel, technique.name, self.found.memory_spread())
        if reason is None:
            judged = self._check(technique, duel, old, new)
            if judged.level is None:
                reason = f"was not seen to keep its contract: {judged.sentence}"
            elif judged is not OPEN and not self.found.contract.allows(judged.level):
                reason = f"only {judged.level} on this program: {judged.sentence}"
            else:
                joined = self._seen_at_best(technique) if self.found.loosest() is Contract.STATISTICAL else None
                winner = Adopted(technique.name, settings, duel, judged, wanted == "memory", joined=joined)
                if technique.compare_all and duel.interval:
                    self._contenders.append(winner)
                    self._progress.outcome(f"{duel.told()}; its other settings are next")
                else:
                    self._adopt(winner)
                return
        if not again and lost_narrowly(duel) and duel.interval:
            self._second_chances[label] = self.found.gain(), 1 - 1 / duel.interval.estimate
        self._reject(technique, settings, reason, duel, judged)

    def _seen_at_best(self, technique: Technique) -> Contract:
        """The strictest level that it can be shown to keep: where the program does not equal itself, not exact."""
        exact = technique.contract is Contract.EXACT
        return Contract.ROUNDING if exact and not self.found.deterministic else technique.contract

    def _wanted(self) -> str:
        """What a candidate has to save now: "time" or "memory"."""
        objective = self.found.objective
        return objective.aim if objective.allows(self.found.peak()) else "memory"

    def _too_large(self, duel: Duel) -> str | None:
        if self.found.objective.allows(duel.new_side.peak_memory):
            return None
        return f"{size(duel.new_side.peak_memory)} at its peak, which is more than was allowed"

    def _adopt(self, adopted: Adopted) -> None:
        self.found.adopted.append(adopted)
        duel = adopted.duel
        if duel.new_facts is not None:
            self._facts = duel.new_facts.with_costs_of(self._facts)
        if self.found.quick_plain().techniques == self.found.best():
            self._prover.step_seconds = duel.new_side.seconds_per_step
        told = peaks(duel) if adopted.for_memory else duel.told()
        self._progress.outcome(f"adopted: {told}; {adopted.check.sentence}")

    def _adopt_the_mildest(self) -> None:
        """Of the contenders, which stand in the order of their candidates, the first that is as fast as the fastest."""
        contenders, self._contenders = self._contenders, []
        fastest = max(each.duel.interval.estimate for each in contenders if each.duel.interval)
        taken = next(each for each in contenders if each.duel.interval and each.duel.interval.high >= fastest)
        for each in contenders:
            if each is not taken:
                reason = f"{each.duel.told()}; {_label(taken.name, taken.settings)} is taken: {taken.duel.told()}"
                self.found.rejected.append(Rejected(each.name, each.settings, reason, each.duel, each.check))
        self._adopt(taken)

    def _reject(
        self,
        technique: Technique,
        settings: Settings,
        reason: str,
        duel: Duel | None = None,
        check: Check | None = None,
    ) -> None:
        self._tried.add(_label(technique.name, settings))
        self.found.rejected.append(Rejected(technique.name, settings, reason, duel, check))
        self._progress.outcome(f"left out: {reason}")

    def _check(self, technique: Technique, duel: Duel, old: TrialSpec, new: TrialSpec) -> Check:
        """At which level the candidate is still the same program: the strictest of those it may keep."""
        one, other = duel.old_trace, duel.new_trace
        if one is None or other is None:
            return Check(None, "its trial ended before it could be compared")
        opened = technique.contract is Contract.OPEN
        wrong = None if opened else differing_invariant(one, other)
        bad = first_non_finite(other)
        if wrong or bad:
            return Check(None, wrong or f"its loss is not finite in step {bad}")
        if opened:
            return OPEN
        self._prover.end_by(self._schedule.confirmation_begins())
        if self.found.loosest() is Contract.STATISTICAL:  # so will the whole plan be proved, and no stricter
            return self._prover.screened(self.found.quick_plain(), new, one, other, closer=True)
        check = Check(None, "")
        if technique.contract is Contract.EXACT or same_bits(one, other):
            check = self._prover.exact(old, new)
            if check.level is not None:
                return check
        levels = {technique.contract, technique.fallback_contract, self._seen_at_best(technique)}
        if Contract.ROUNDING in levels:
            check = self._prover.rounding(self.found.stepwise_plain(), new)
            if check.level is not None:
                return check
        if Contract.STATISTICAL not in levels:
            return check
        if self.found.contract.allows(Contract.STATISTICAL):
            saved = 1 - 1 / duel.interval.estimate if duel.interval else 0.0
            if time.monotonic() > self._schedule.proof_begins(Contract.STATISTICAL, saved):
                return Check(None, "the budget has no time for the proof that it would need")
            return self._prover.screened(self.found.quick_plain(), new, one, other)
        if time.monotonic() > self._schedule.confirmation_begins():
            return check  # it came to no end
        return Check(Contract.STATISTICAL, check.sentence)


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
