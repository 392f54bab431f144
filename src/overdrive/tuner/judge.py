"""Judges a candidate by a duel against the best plan so far, and by the proof that its contract takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.objective import size
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.confirmation import FEWEST, pairs_to_tell
from overdrive.evidence.equivalence import (
    OPEN,
    Check,
    differing_invariant,
    first_non_finite,
    same_bits,
    same_in_its_duel,
)
from overdrive.evidence.first_losses import no_rounding
from overdrive.evidence.neighbours import MOST_BIAS, often
from overdrive.evidence.speed import Verdict, speedup, verdict
from overdrive.proof.prover import Prover
from overdrive.trials.duel import Duel, are_enough, full_processes, new_names
from overdrive.trials.run_duel import gains_too_little
from overdrive.tuner.duel_runner import CANDIDATE, MEMORY, SCREENED, DuelRunner, confirmation
from overdrive.tuner.findings import Findings
from overdrive.tuner.gain_with_screening import gain_with_screening
from overdrive.tuner.neighbours import least_believed
from overdrive.tuner.outcomes import Adopted, Rejected, gain_of, loosest, shown_exact, without
from overdrive.tuner.reasons import left_out_names, no_faster, no_smaller, other_steps, ran_out_of_time
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.strategies import Candidate

_NO_TIME = Check(None, "the budget has no time for the proof that it would need", late=True)
_MOST_PAIRS = 4  # of fresh processes that a candidate with a small gain may take


class Judge:
    """Admits to the plan only what is FASTER (or smaller, where that is asked for) and still the same program."""

    def __init__(self, found: Findings, duels: DuelRunner, prover: Prover, schedule: Schedule) -> None:
        self._found = found
        self._duels = duels
        self._prover = prover
        self._schedule = schedule

    def judge(self, candidate: Candidate) -> tuple[Adopted, ...] | Rejected:
        """One `Adopted` for each of the candidate's techniques; they share their duel and its check."""
        found = self._found
        kept = without(candidate.replaces, found.adopted)
        beside = found.spec((each.name, each.settings) for each in kept)
        old, new = found.spec(found.best()), found.spec((*beside.techniques, *candidate.chosen))
        best = " + ".join(["plain", *(name for name, _ in found.best())])
        place = f" in place of {' + '.join(candidate.replaces)}," if candidate.replaces else ""
        self._duels.progress.stage(f"{candidate.label}{place} against {best}")
        wanted = found.wanted()
        duel = self._duel(candidate, old, new, wanted)
        if wanted == "time":
            reason = no_faster(duel) or self._too_large(duel)
        else:
            reason = no_smaller(duel, found.memory_spread())
        both = self._with_its_screening(duel) if reason and wanted == "time" else None
        if both:
            reason = self._too_large(duel)
        told = both or duel.published or self._screened(candidate)  # by more than one pair of processes
        if reason is None and wanted == "time" and not told:
            duel, reason = self._in_more_processes(candidate, duel)
        if reason is None and wanted == "time":
            reason = self._in_doubt(both or duel.interval, duel)
        if reason is not None:
            late = wanted == "time" and ran_out_of_time(duel)
            return replace(_rejected(candidate, reason, duel), kind="time" if late else "measured")
        if wanted == "time" and (others := other_steps(found.control, duel)):
            return _rejected(candidate, others, duel, Check(None, others))  # another attempt would say no more
        judged = self._check(candidate, duel, kept, new).of_what_acted(candidate.names)
        if judged.level is None:
            return _rejected(candidate, f"was not seen to keep its contract: {judged.sentence}", duel, judged)
        if judged is not OPEN and not found.contract.allows(judged.level):
            return _rejected(candidate, f"only {judged.level} on this program: {judged.sentence}", duel, judged)
        statistical = loosest(kept) is Contract.STATISTICAL
        return tuple(
            Adopted(
                technique.name,
                settings,
                duel,
                judged,
                wanted == "memory",
                joined=self._seen_at_best(technique.contract_with(settings)) if statistical else None,
                share=both,
            )
            for technique, settings in candidate.members
        )

    def _duel(self, candidate: Candidate, old: TrialSpec, new: TrialSpec, wanted: str) -> Duel:
        schedule, level, promise = self._schedule, candidate.contract, candidate.promise
        pairs = candidate.processes(self._found.facts)
        if wanted == "time" and candidate.again and not self._found.adopted:
            rules = schedule.rules_of_another_attempt(level, promise)
            return self._duels.run_duel(old, new, rules, schedule.first_ends(level, promise))
        if wanted == "time" and schedule.confirms_at_once(level, promise, pairs):
            rules = replace(confirmation(FEWEST), selects=True)
            return self._duels.run_duel(old, new, rules, schedule.first_ends(level, promise))
        rules = MEMORY if wanted != "time" else SCREENED if self._screened(candidate) else CANDIDATE
        # A look takes more where others hold the cores.
        if wanted == "time" and often(self._found.screened.share_disturbed):
            rules = replace(rules, looks=CANDIDATE.looks)
        if wanted == "time" and pairs > 1:
            rules = replace(rules, looks=rules.looks[:2], processes=pairs, most_processes=pairs)
        return self._duels.run_duel(old, new, rules, schedule.selection_ends(level, promise))

    def _screened(self, candidate: Candidate) -> bool:
        """Whether its gain was seen in many blocks already, against the same; its duel is one look more."""
        return not candidate.replaces and all(
            self._found.screened.within_processes(chosen) for chosen in candidate.chosen
        )

    def _with_its_screening(self, duel: Duel) -> Interval | None:
        """The gain by its duel and its screening together, where the duel alone was not enough and both are faster.

        Of gains of 5 to 7 % that screenings of public programs had measured, duels lost two of three. What is
        published comes from the confirmation. A duel that saw a loss, 0.89x [0.80, 1.00], does not join: a proof of
        92 s came after it.
        """
        broken = duel.exit_reason or duel.old_exit_reason or not are_enough(duel.kept())
        if broken or (duel.published and gains_too_little(duel)) or left_out_names(duel):
            return None
        if not duel.interval or duel.interval.estimate <= 1:
            return None
        both = gain_with_screening(self._found, duel)
        least = MOST_BIAS if self._found.screened.busy() else 0.0
        return both if both and verdict(both) is Verdict.FASTER and both.low > least else None

    def _in_more_processes(self, candidate: Candidate, duel: Duel) -> tuple[Duel, str | None]:
        """What won by no more than processes differ is measured once more, in fresh ones alone.

        With one pair of processes at least one of 25 useless candidates is adopted in 88 to 100 % of searches, where
        processes differ by 2 to 5 % (statistics-review.md, 8.1).

        Returns: the duel that counts, and why it does not win after all.
        """
        found = self._found
        # Several that ran in turn have the spread between them in their verdict already.
        spread = duel.sequential and full_processes(duel.kept()) > 1
        if spread or self._is_of_any(duel):
            return duel, None
        few = f"a gain no larger than processes differ: {duel.describe()}"
        needed = pairs_to_tell(found.spread(), duel.interval.estimate if duel.interval else 1.0)
        if full_processes(duel.kept()) > 1 or needed > _MOST_PAIRS:
            return duel, few
        rules = replace(CANDIDATE, looks=CANDIDATE.looks[:2], processes=needed, most_processes=needed)
        ends = self._schedule.selection_ends(candidate.contract, candidate.promise)
        if time.monotonic() + self._schedule.durations.of_duel(rules) > ends:
            return duel, f"{few}, and no time is left for {needed} fresh pairs of them"
        self._duels.progress.stage(f"{' + '.join(new_names(duel))} again, in {needed} fresh pairs of processes")
        again = self._duels.run_duel(duel.old, duel.new, rules, ends)
        if reason := no_faster(again):
            return again, reason
        if self._is_of_any(again):
            return again, None
        return again, f"a gain no larger than processes differ: {again.describe()}"

    def _is_of_any(self, duel: Duel) -> bool:
        """Whether processes that were not measured gain, too: by how much all of this tune differ, or three pairs and
        more by how much these do.

        Of a public U-Net three pairs gained 1.22, 1.27 and 1.28 (1.26x [1.18, 1.34] by themselves), and that was lost:
        the processes of its screening, of few blocks each, seemed to differ by more.
        """
        pairs = duel.kept()
        by_itself = full_processes(pairs) >= FEWEST and verdict(speedup(pairs)) is Verdict.FASTER
        return by_itself or verdict(self._found.of_any(pairs)) is Verdict.FASTER

    def _in_doubt(self, gain: Interval | None, duel: Duel) -> str | None:
        """Where other programs had the machine: why what was measured may be their doing."""
        least = least_believed(duel, self._found.noise())
        if not least or (gain and gain.low > least):
            return None
        return f"others had the cores, who may have made a gain of {least:.2f}x of nothing: {duel.describe()}"

    def _too_large(self, duel: Duel) -> str | None:
        if self._found.objective.allows(duel.new_side.peak_memory):
            return None
        return f"{size(duel.new_side.peak_memory)} at its peak, which is more than was allowed"

    def _seen_at_best(self, contract: Contract) -> Contract:
        """The strictest level that can be shown to be kept: where the program does not equal itself, not exact."""
        exact = contract is Contract.EXACT
        return Contract.ROUNDING if exact and not self._found.deterministic else contract

    def _check(self, candidate: Candidate, duel: Duel, kept: Sequence[Adopted], new: TrialSpec) -> Check:
        """Check at which level the candidate is still the same program: the strictest of those it may keep.

        Args:
            kept: what it joins: the plan so far, without what it replaces.
        """
        one, other = duel.old_trace, duel.new_trace
        if one is None or other is None:
            return Check(None, "its trial ended before it could be compared")
        contract = candidate.contract
        opened = contract is Contract.OPEN
        wrong = None if opened else differing_invariant(one, other)
        bad = first_non_finite(other)
        if wrong or bad:
            return Check(None, wrong or f"its loss is not finite in step {bad}")
        if opened:
            return OPEN
        self._prover.end_by(self._schedule.proof_of_one_ends())
        alike = self._against_equals(candidate) and same_bits(one, other)
        if loosest(kept) is Contract.STATISTICAL:  # so will the whole plan be proved, and no stricter
            looked = self._prover.screened(self._found.quick_plain(kept), new, one, other, closer=True)
            return looked if alike or looked.level is None else self._by_itself(candidate, kept, looked)
        check = Check(None, "")
        if contract is Contract.EXACT or alike:
            if alike and (pending := same_in_its_duel(one, other)):  # a plan is proved once, as a whole
                return pending
            check = self._prover.exact(self._found.spec((each.name, each.settings) for each in kept), new)
            if check.level is not None:
                return check
        levels = {contract, candidate.fallback_contract, self._seen_at_best(contract)}
        start = max(0.0, duel.new_side.setup_seconds - duel.old_side.setup_seconds)
        ends = self._schedule.proof_of_one_ends()
        in_vain = no_rounding(self._found.facts, one, other) if self._found.deterministic else None
        if Contract.ROUNDING in levels and in_vain:
            check = Check(None, in_vain)
        elif Contract.ROUNDING in levels and self._schedule.too_late_to_prove(Contract.ROUNDING, ends, start):
            check = _NO_TIME
        elif Contract.ROUNDING in levels:
            check = self._prover.rounding(self._found.stepwise_plain(kept), new)
            if check.level is not None:
                return check
        if Contract.STATISTICAL not in levels:
            return check
        if self._found.contract.allows(Contract.STATISTICAL):
            saved = 1 - 1 / duel.interval.estimate if duel.interval else 0.0
            by_itself = duel.published and not self._found.adopted  # it is its own confirmation
            latest = self._schedule.first_ends if by_itself else self._schedule.proof_begins
            if time.monotonic() > latest(Contract.STATISTICAL, saved):
                told = "; and ".join(filter(None, (check.sentence, _NO_TIME.sentence)))
                return check if check.late else replace(_NO_TIME, sentence=told)
            if not candidate.replaces:
                self._hash_what_quickens_seeds()
                kept = self._found.adopted
            return self._prover.screened(self._found.quick_plain(kept), new, one, other)
        if check.late or time.monotonic() > self._schedule.confirmation_begins():
            return check  # it came to no end
        return Check(Contract.STATISTICAL, check.sentence)

    def _against_equals(self, candidate: Candidate) -> bool:
        """Whether its duel was against what is exact as far as the candidate changes it: bits may be compared."""
        return loosest([each for each in self._found.adopted if each.name in candidate.replaces]) is Contract.EXACT

    def _hash_what_quickens_seeds(self) -> None:
        """Prove what only its duel has shown exact, where the original's runs under seeds save more by it."""
        found, prover = self._found, self._prover
        shown = shown_exact(found.adopted)
        pending = [each for each in shown if each.check.pending]
        if not pending:
            return
        plain = found.quick_plain()
        original = prover.seconds_needed(Contract.STATISTICAL, plain) / 2  # the candidate makes as many runs
        if original * (1 - 1 / gain_of(pending)) < prover.seconds_needed(Contract.EXACT):
            return
        best = found.spec((each.name, each.settings) for each in shown)
        check = prover.exact(found.reference(), best)
        if check.level is Contract.EXACT:
            found.checked({each.name: check for each in pending})

    def _by_itself(self, candidate: Candidate, kept: Sequence[Adopted], looked: Check) -> Check:
        """What promises more than the statistical plan that it joins must keep that in three replayed states at least.

        It is tried without the techniques of that level, whose own errors would hide its. Where it may fall to
        `statistical` anyway, nothing more is asked.
        """
        if Contract.STATISTICAL in (candidate.contract, candidate.fallback_contract):
            return looked
        plain = self._found.stepwise_plain(kept)
        alone = self._found.spec((*plain.techniques, *candidate.chosen))
        check = self._prover.few_states(plain, alone).of_what_acted(candidate.names)
        if (
            check.level is None
            and not check.late
            and candidate.contract is Contract.EXACT
            and self._found.deterministic
        ):
            # Its states cannot be replayed, perhaps.
            check = self._prover.exact(plain, alone).of_what_acted(candidate.names)
        return looked if check.level is not None else check


def _rejected(candidate: Candidate, reason: str, duel: Duel, check: Check | None = None) -> Rejected:
    """Of several techniques under the name of all."""
    if len(candidate.members) == 1:
        name, settings = candidate.chosen[0]
        return Rejected(name, settings, reason, duel, check)
    return Rejected(candidate.label, {}, reason, duel, check)
