"""Finalises a plan: what each of its techniques gained, its proof as a whole, its confirmation."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.records import ExitReason
from overdrive.evidence.attribution import attribute, configurations, without_effect
from overdrive.evidence.confirmation import FEWEST, MOST, told
from overdrive.evidence.equivalence import differing_invariant, first_non_finite, same_bits
from overdrive.evidence.neighbours import share_disturbed
from overdrive.evidence.speed import Pair, Verdict, combined, speedup, verdict
from overdrive.proof.prover import Prover
from overdrive.trials.duel import Duel, full_processes, of_full_processes
from overdrive.trials.factorial import FactorialTooLarge, measure
from overdrive.trials.run_duel import CLEAR_GAIN, beyond_doubt, judge
from overdrive.tuner.duel_runner import AGAIN, DuelRunner, confirmation
from overdrive.tuner.durations import FACTORIAL_ROUNDS
from overdrive.tuner.findings import Findings
from overdrive.tuner.gain_with_screening import gain_with_screening
from overdrive.tuner.neighbours import disturbed, least_believed
from overdrive.tuner.outcomes import Rejected, Standing
from overdrive.tuner.plan_proof import PlanProof
from overdrive.tuner.reasons import other_steps
from overdrive.tuner.schedule import Schedule


class Finaliser:
    """Turns what was adopted into a plan that is proved and confirmed, or into none."""

    def __init__(self, found: Findings, duels: DuelRunner, prover: Prover, schedule: Schedule) -> None:
        self._found = found
        self._duels = duels
        self._schedule = schedule
        self._plan_proof = PlanProof(found, prover, schedule, duels.progress)
        self._fixed = FEWEST  # pairs of processes that the confirmation comes to if the clock allows

    def prove(self) -> None:
        """The plan so far. It is called again when more has joined it: what was proved before stays, whatever comes."""
        found = self._found
        searched = list(found.adopted)
        self._attribute()
        self._plan_proof.run(searched)
        if found.attribution is None and found.screened.choice:  # something was dropped
            self._attribute()

    def confirm(self) -> None:
        if any(not each.needed for each in self._found.adopted):
            self._confirm()

    def _attribute(self) -> None:
        """What each technique of the plan gained, all measured together; what gains nothing is dropped.

        After a screening its model says it, and the duels of what joined later: one process of each combination would
        drop gains of 5 % again, where processes differ by 2 %.
        """
        found = self._found
        if found.screened.choice:
            found.attribute(found.screened.attribution(found.best()))
            return
        if found.needed() and len(found.adopted) > len(found.needed()):
            return self._leave_to_duels("the program does not run without all of them")
        while len(found.adopted) > 1:
            if self._duels.sequential:
                return self._leave_to_duels("two of it at once do not fit into the memory")
            chosen = dict(found.best())
            names = tuple(chosen)
            wanted = self._affordable_configurations(names)
            if not wanted:
                return self._leave_to_duels("there is no budget for more")
            self._duels.progress.stage(f"contributions: {len(wanted)} combinations of {len(names)} techniques in turn")
            specs = [found.spec((name, chosen[name]) for name in names if name in subset) for subset in wanted]
            try:
                deadline = self._schedule.proof_begins()
                seconds = measure(self._duels.pool, specs, FACTORIAL_ROUNDS, deadline, total_steps=self._total_steps())
            except FactorialTooLarge as error:
                return self._leave_to_duels(str(error))
            if len(seconds[0]) < FACTORIAL_ROUNDS // 2:
                return self._leave_to_duels("measuring all combinations together broke off")
            gains = attribute(names, dict(zip(wanted, seconds, strict=True)))
            found.attribute(gains)
            kept = {each.name for each in found.adopted if each.for_memory or each.needed}
            idle = (name for name in without_effect(gains) if name not in kept)
            useless = next((name for name in idle if not self._wins_again(name)), None)
            if useless is None:
                return
            self._drop(useless, "no measurable effect in the whole plan, and a simpler plan wins the tie")

    def _wins_again(self, name: str) -> bool:
        """Whether the whole plan is faster with this technique, by fresh processes.

        Among all combinations it gained nothing, in its duel it did, and one process of each says too little: on a
        noisy machine `channels_last`, with 1.52 [1.36, 1.70] in its duel, came out idle.
        """
        found = self._found
        best = found.spec(found.best())
        without = found.spec(each for each in found.best() if each[0] != name)
        if self._schedule.time_to_run_duel_again():
            self._duels.progress.stage(f"{name} again: the whole plan against the plan without it")
            duel = self._duels.run_duel(without, best, AGAIN, self._schedule.proof_begins())
            self._duels.progress.outcome(duel.describe() if duel.interval else "nothing established")
            if full_processes(duel.kept()) >= AGAIN.processes or beyond_doubt(duel):
                found.keep_duel(f"{name}, again", duel)
                return duel.verdict is Verdict.FASTER
        its = next(each.speedup for each in found.adopted if each.name == name)
        return its is not None and its.low > CLEAR_GAIN  # nothing more could be established: its own duel stands

    def _leave_to_duels(self, reason: str) -> None:
        found, told = self._found, f"What each technique gained is told by its own duel: {reason.rstrip('.')}."
        found.attribute(None)  # there may be one of the plan before more joined
        if told not in found.notes:
            found.note(told)

    def _total_steps(self) -> int | None:
        """The program's length in steps, where a duel came to its end."""
        duels = [self._found.control, *(each.duel for each in self._found.adopted)]
        return max((duel.total_steps for duel in duels if duel and duel.total_steps), default=None)

    def _affordable_configurations(self, names: tuple[str, ...]) -> list[frozenset[str]]:
        """All combinations if there is time for them, else the most telling ones, else none."""
        left = self._schedule.proof_begins() - time.monotonic()
        for most in (16, 2 * len(names) + 2):
            wanted = configurations(names, most)
            if self._schedule.durations.of_field(len(wanted)) < left:
                return wanted
        return []

    def _drop(self, name: str, reason: str) -> None:
        """Take an adopted technique out of the plan again."""
        found = self._found
        out = next(each for each in found.adopted if each.name == name)
        found.drop(Rejected(out.name, out.settings, reason, out.duel, out.check))
        self._duels.progress.outcome(f"dropped {name}: {reason}")

    def settle(self) -> None:
        """The plan as far as it is proved and confirmed by now, where no trial is made any more."""
        found = self._found
        if found.confirmation is not None:
            return
        self._plan_proof.settle()
        if found.screened.choice:
            self._attribute()
        if any(not each.needed for each in found.adopted):
            itself = found.confirms_itself()
            # Who watches a confirmation may stop it while luck lasts: it has come to all of its pairs, or to none.
            self._conclude(itself or self._under_way(), FEWEST if itself else self._fixed)

    def _confirm(self) -> None:
        """The chosen plan against the untouched program, in fresh processes, on data of its own."""
        duel = self._found.confirms_itself()
        if duel is None or self._schedule.time_to_confirm_afresh():
            duel = self._in_fresh_processes()
        self._conclude(duel)

    def _under_way(self) -> Duel:
        """The confirmation of this plan that was broken off: the pairs of processes that came to their end."""
        plain, best = self._found.reference(), self._found.spec(self._found.best())
        latest = self._duels.latest
        if latest is None or not latest.published or (latest.old, latest.new) != (plain, best):
            return Duel(plain, best)
        duel = replace(latest, pairs=of_full_processes(latest.pairs))
        judge(duel, confirmation(FEWEST))
        return duel

    def _conclude(self, duel: Duel, needed: int = FEWEST) -> None:
        """What this confirmation says of the plan, if it has so many pairs of processes."""
        found = self._found
        found.confirm(duel)
        found.note(*disturbed(duel))
        self._weigh(duel, needed)
        if wrong := _failure_under_plan(duel) or self._difference(duel) or other_steps(found.control, duel):
            found.disprove(f"in the confirmation, {wrong}")
        elif not (duel.old_trace and duel.new_trace) and (duel.exit_reason or duel.old_exit_reason):
            found.note(f"The confirmation broke off ({duel.exit_reason or duel.old_exit_reason}).")
        basis = found.standing.basis if found.standing else "nothing established"
        self._duels.progress.outcome(duel.describe() if duel.interval and found.confirmed else basis)

    def _difference(self, duel: Duel) -> str | None:
        """What differs in the traces of the confirmation that may not."""
        found = self._found
        if not duel.old_trace or not duel.new_trace or found.loosest() is Contract.OPEN:
            return None
        if bad := first_non_finite(duel.new_trace):
            return f"its loss is not finite in step {bad}"
        wrong = differing_invariant(duel.old_trace, duel.new_trace)
        # Where the program alone does not repeat itself, the plan was proved with deterministic operations.
        same = not found.deterministic or same_bits(duel.old_trace, duel.new_trace)
        return wrong or (
            "it ends in another state, though it was proved exact"
            if found.loosest() is Contract.EXACT and not same
            else None
        )

    def _in_fresh_processes(self) -> Duel:
        found = self._found
        rules = self._schedule.confirmation_rules()
        self._fixed = rules.most_processes
        pairs = f"{rules.processes}{f' to {self._fixed}' if self._fixed > rules.processes else ''} pairs of processes"
        self._duels.progress.stage(f"confirmation: the whole plan against the untouched program, {pairs}")
        best = found.spec(found.best())
        if self._schedule.time_to_confirm():
            return self._duels.run_duel(found.reference(), best, rules, self._schedule.deadline)
        return Duel(found.reference(), best)  # its first processes would be given 20 s each all the same

    def _weigh(self, duel: Duel, needed: int = FEWEST) -> None:
        """Whether the confirmation says enough by itself, or else with what the search measured."""
        found, processes = self._found, full_processes(duel.kept())
        found.weigh(processes >= needed, None)
        if duel.verdict is Verdict.FASTER and speedup(duel.kept()).low <= least_believed(duel, found.noise()):
            duel.verdict = Verdict.INCONCLUSIVE
        if found.confirmed and (self._for_memory() or duel.verdict is not Verdict.INCONCLUSIVE):
            return
        duel.verdict = Verdict.INCONCLUSIVE
        if _broken_off(duel) is None:
            found.weigh(found.confirmed, self._standing(duel, needed))
        told = "confirm it" if found.standing else "tell"
        why, more = self._why_too_few(duel, needed, told)
        if found.confirmed:
            came = f"The {processes} process pairs of the confirmation differ too much to tell by themselves"
        else:
            came = f"The confirmation came to {processes} of {needed} process pairs {why}"
        stands = f"the plan is {found.standing.basis}" if found.standing else "nothing is established"
        found.note(f"{came}: {stands}.{' ' if more else ''}{more}")

    def _why_too_few(self, duel: Duel, needed: int, told: str) -> tuple[str, str]:
        """Why a confirmation came to too few pairs of processes, and a sentence about what would `told`."""
        if self._schedule.stopped:
            return "before the tune was stopped", "The same command goes on from there."
        share = share_disturbed(duel.pairs)
        if full_processes(duel.pairs) >= needed and not self._found.confirmed:
            few = f"with enough blocks, since others held the cores in {share:.0%} of them"
            return few, f"On a quieter machine the same command would {told}."
        if reason := _broken_off(duel):
            return f"before it broke off ({reason})", ""
        quieter = ", or a quieter machine," if share else ""
        return "before the budget was used up", f"A larger --budget{quieter} would {told}."

    def _standing(self, confirmation: Duel, needed: int = FEWEST) -> Standing | None:
        """What is established where the confirmation says too little: by the fresh processes there were, or with what
        the search measured, or by that alone."""
        found, for_memory = self._found, self._for_memory()
        full = of_full_processes(confirmation.kept())
        fresh = self._of_fresh(full, confirmation.sequential) if full else None
        count = f"{full_processes(full)}{'' if found.confirmed else f' of {needed}'} fresh process pairs"
        if fresh and (for_memory or self._believed(fresh, confirmation)):
            basis = f"measured in {count}, and not confirmed"
            return Standing(basis, told(fresh, MOST), replace(confirmation, pairs=full))
        duels = found.led_here()
        together = f"measured in {count} and in the search, together, and not confirmed"
        alone = "established in the search, and not confirmed in fresh processes"
        itself = found.confirms_itself()
        if itself and confirmation.pairs == itself.pairs:  # what it says is in what the search says
            fresh, alone = None, together
        known = [gain_with_screening(found, duel) or found.of_any(duel.kept()) for duel in duels if duel.interval]
        # Of several duels the ends are multiplied: wider than it need be, since not all of them err to the same side.
        ends = [[each.low, each.estimate, each.high] for each in known]
        searched = Interval(*(math.prod(column) for column in zip(*ends, strict=True))) if known else None
        if fresh and searched and fresh.high < searched.low:
            return None  # the fresh processes speak against it
        if fresh and searched and not confirmation.sequential and not for_memory:
            both = combined([fresh, searched])
            return Standing(together, told(both, MOST), None) if self._believed(both, *duels) else None
        if not for_memory and (searched is None or not self._believed(searched, *duels)):
            return None
        whole = len(duels) == 1 and duels[0].old == found.reference() and duels[0].new.techniques == found.best()
        return Standing(alone, told(searched, MOST) if searched else None, duels[0] if whole else None)

    def _believed(self, gain: Interval, *measured: Duel) -> bool:
        """Whether it is one, and no doing of others who had the machine while it was measured."""
        least = max((least_believed(duel, self._found.noise()) for duel in measured), default=0.0)
        return verdict(gain) is Verdict.FASTER and gain.low > least

    def _of_fresh(self, pairs: Sequence[Pair], sequential: bool) -> Interval:
        """What processes that are too few say of any.

        Where they ran in turn, minutes lie between the two sides: several also tell by themselves how far that goes.
        """
        of_any = self._found.of_any(pairs)
        if not sequential or full_processes(pairs) < 2:
            return of_any
        return max(of_any, speedup(pairs), key=lambda each: each.high / max(each.low, 1e-9))

    def _for_memory(self) -> bool:
        """Whether the plan is to save memory, of which processes need alike."""
        found = self._found
        plain = found.control.old_side.peak_memory if found.control else 0
        return found.objective.aim == "memory" or not found.objective.allows(plain)


def _broken_off(duel: Duel) -> ExitReason | None:
    """Why it ended, where that was not for want of time."""
    reasons = duel.exit_reason, duel.old_exit_reason
    return next((each for each in reasons if each is not None and each.kind != "late"), None)


def _failure_under_plan(duel: Duel) -> str | None:
    """How a process under the plan failed, whichever of the pairs it was of, and however fast the others were."""
    reason = duel.exit_reason
    return None if reason is None or reason.kind in ("ended", "late") else f"a process under it failed ({reason})"
