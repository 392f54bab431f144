"""Shares out a tune's budget, so that its last stages have their time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.evidence import confirmation as evidence
from overdrive.evidence.equivalence import Check
from overdrive.evidence.registration import LOOKS
from overdrive.proof.prover import Prover
from overdrive.trials.duel import Rules
from overdrive.tuner.duel_runner import AGAIN, CANDIDATE, SCREENED, confirmation
from overdrive.tuner.durations import Durations, hoped
from overdrive.tuner.findings import Findings

_SHORTEST_DUEL_SECONDS = 5.0
_ALPHA_OF_ANOTHER = 0.01  # of a confirmation of what lost a duel before
_SCREENING_SHARE = 0.4
_SCREENING_SHARE_AT_MOST = 0.45  # of all that is left, where what it chooses has one duel
_ENOUGH_OF_IT = 0.7  # of what a confirmation is reckoned to take: some of its processes are better than a duel of one
_SPARE_OF_BOTH = 1.3  # by which a duel and a confirmation may take longer than is reckoned
# Of the seeds that these looks take, the most that there is time for when a first technique has joined that has to be
# proved so: it is worth more than what may join yet. Of public MNIST five seeds did not tell of `autocast` (1.54x), and
# the look at ten missed its time by what the duels of `waiting` and `allocator` took.
_SEEDS_OF_A_PLAN = (LOOKS[2], LOOKS[1])
_SPARE_OF_ESTIMATE = 1.2  # by which what is reckoned for a proof is more than it may take
# Of the budget: what is kept for a confirmation by more pairs of processes than usual, and for one by the usual number.
_CONFIRMATION_SHARE, _USUAL_CONFIRMATION_SHARE = 0.1, 0.25
_EPOCHS_SHARE = 0.06  # of the budget, at most, for what comes between two epochs


class Schedule:
    """All times are of time.monotonic()."""

    def __init__(self, found: Findings, deadline: float, prover: Prover) -> None:
        self.deadline = deadline
        self.stopped = False  # no trial is made any more
        self.contributions_known = False  # they need no time of their own
        self._seeds = 0  # that a plan which is proved by seeds has its time for; 0: nothing of it takes that
        self._found = found
        self._prover = prover
        self.durations = Durations(found, prover)

    @contextlib.contextmanager
    def kept_back(self, seconds: float) -> Iterator[None]:
        """Have what is tried meanwhile end so much sooner, for what comes after it."""
        self.deadline -= seconds
        try:
            yield
        finally:
            self.deadline += seconds

    def stop(self) -> None:
        """There is no more time, for whatever is left."""
        self.deadline, self.stopped = time.monotonic(), True

    def seconds_left(self) -> float:
        """Until the last proof and the confirmation."""
        return max(0.0, self.proof_begins() - time.monotonic())

    def confirmation_begins(self) -> float:
        control = self._found.control
        if control is None or not control.pairs:
            return self.deadline
        budget = self.deadline - self._found.started
        usual = min(evidence.USUAL, self._confirmation_pairs(_USUAL_CONFIRMATION_SHARE * budget))
        pairs = max(usual, self._confirmation_pairs(_CONFIRMATION_SHARE * budget))
        return self.deadline - self.durations.of_confirmation(pairs)

    def shortest_confirmation_begins(self) -> float:
        """When the fewest pairs of processes that confirm a plan have their time yet."""
        if self._found.control is None or not self._found.control.pairs:
            return self.deadline
        return self.deadline - self.durations.of_confirmation(evidence.FEWEST)

    def time_to_confirm(self) -> bool:
        """Whether there is time for the first steps of a pair of processes at least."""
        return time.monotonic() + self.durations.of_start() < self.deadline

    def time_to_confirm_afresh(self) -> bool:
        """Whether what is confirmed by its own duel has time for a confirmation after all: duels may take less than
        was reckoned, as long as none was seen.

        Of public graph attention, 0.4 s a step, the duel told 1.66x [1.01, 2.44], and 134 s of five minutes were left.
        """
        return time.monotonic() + self.durations.of_confirmation(evidence.FEWEST) < self.deadline

    def confirmation_rules(self) -> Rules:
        """As many pairs of processes as the noise seen so far asks for and there is time for.

        They are reckoned beforehand, and made by the clock: of `make demo` three were reckoned, and 18 s left over.
        More than usual are not, where candidates had no time yet: it is theirs then (see `unproved`).
        """
        most = evidence.USUAL if any(each.kind == "time" for each in self._found.rejected) else evidence.MOST
        reckoned = self._confirmation_pairs(self.deadline - time.monotonic())
        return confirmation(reckoned, min(most, self._pairs_wanted()))

    def _confirmation_pairs(self, seconds: float, more: float = 1.0) -> int:
        """Pairs of processes, within so many seconds where that allows for the fewest.

        Args:
            more: times as fast as the plan so far, as is hoped.
        """
        of = self.durations.of_confirmation
        affordable = (each for each in range(self._pairs_wanted(more), evidence.FEWEST, -1) if of(each) < seconds)
        return next(affordable, evidence.FEWEST)

    def _pairs_wanted(self, more: float = 1.0) -> int:
        """What the noise seen so far asks for, whatever it takes. `more`: see `_confirmation_pairs`."""
        if self._found.wanted() == "memory":
            return evidence.FEWEST  # peaks hardly differ
        needed = evidence.pairs_needed(self._found.spread(), more * self._found.gain(), confirmation(1).looks[-1])
        return max(needed, evidence.USUAL)

    def proof_begins(self, joining: Contract = Contract.EXACT, promise: float = 0.0) -> float:
        """
        Args:
            joining: the level of what may yet be adopted.
            promise: the share of a step that it promises to save. It is adopted only if it saves some, and the runs
                of its proof are then shorter.
        """
        level = max(self._found.loosest(), joining, key=lambda each: each.rank)
        if level is not Contract.STATISTICAL:
            return self.confirmation_begins() - self._prover.seconds_needed(level)
        if self._found.loosest() is Contract.STATISTICAL and not self._seeds:
            in_time = (seeds for seeds in _SEEDS_OF_A_PLAN if time.monotonic() < self._seeds_begin(promise, seeds))
            self._seeds = next(in_time, LOOKS[0])
        return self._seeds_begin(promise, self._seeds or LOOKS[0])

    def _seeds_begin(self, promise: float, seeds: int, rest: float | None = None) -> float:
        """When a proof at `statistical` begins that comes to the look at so many seeds. `rest`: see `seeds_end`."""
        return self.seeds_end(rest) - self.durations.of_proof(Contract.STATISTICAL, promise, seeds)

    def seeds_end(self, rest: float | None = None) -> float:
        """When a proof at `statistical` has to be over: before a confirmation, and the shortest one where the rest has
        to be proved first.

        Args:
            rest: seconds that takes; None: as it is now.
        """
        rest = self.durations.of_rest() if rest is None else rest
        return min(self.confirmation_begins(), self.shortest_confirmation_begins() - rest)

    def time_to_be_joined(self, promise: float, by: Contract) -> bool:
        """Whether a first technique that is proved by seeds can have its duel before another of this level has, whose
        own proof is not needed then: that is made only where seeds tell nothing.

        Of CIFAR-10 `channels_last`, 1.18x, came first: its proof at `rounding` took 47 s, and there was no time left
        for `autocast`, 1.20x.
        """
        duels = 2 * self.durations.of_duel(SCREENED)
        return time.monotonic() + duels < self._seeds_begin(promise, LOOKS[0], self.durations.of_rest_at(by))

    def proved_sooner(self, proof: Check | None) -> bool:
        """Whether the plan is proved, and what its proof took tells how long that of more will: a few seeds may have
        been enough where more had their time.

        Of CIFAR-10 at `statistical` five seeds told, ten had their time, and in the 68 s that were left over
        `channels_last`, 1.10x, could have joined.
        """
        if proof is None or proof.level is None:
            return False
        self.contributions_known = True  # or will not be: their time is for candidates
        if proof.statistical is not None:
            self._seeds = max(proof.statistical.runs)
        return True

    def proof_of_one_ends(self) -> float:
        """When a candidate has to be proved; the first of all may take the time in which it would be confirmed."""
        return self.confirmation_begins() if self._found.adopted else self.deadline

    def cannot_prove(self, level: Contract) -> str:
        """Why a candidate of this level would have its duel in vain, if so."""
        return self._prover.impossible(level)

    def too_late_to_prove(self, level: Contract, until: float, start: float = 0.0) -> bool:
        """Whether a proof at `exact` or `rounding` could not come to its end.

        A public U-Net of 0.6 s a step began one with 51 of the 135 s that it took, and a first pair of processes of its
        confirmation would have had that time.

        Args:
            start: seconds that the candidate adds to the start of a process.
        """
        least = self._prover.seconds_needed(level) / _SPARE_OF_ESTIMATE + start
        return time.monotonic() + least > until

    def screening_ends(self, began: float, choice: Contract = Contract.EXACT, promise: float = 0.0) -> float:
        """Two fifths of the time until the last candidate, and a third of all that is left at the least; more where
        the duel of what it chooses can be its confirmation, and nothing else.

        Before a proof at `statistical`, a fifth is enough: every second more is one for another seed. Of public MNIST
        `autocast` was clear after 30 s, 94 were taken, and five seeds of each did not tell.

        Args:
            choice: the loosest level of what it chooses by now, which promises to save this share of a step.
        """
        loose = choice is Contract.STATISTICAL
        left, before_proof = self.deadline - began, self.proof_begins(choice, promise) - began
        seconds = max(_SCREENING_SHARE * before_proof, left / (5 if loose else 3))
        if not loose and seconds + self.durations.of_duel(SCREENED) > before_proof:
            most = min(_SCREENING_SHARE_AT_MOST * left, left - self.durations.of_confirmation(evidence.FEWEST))
            seconds = max(seconds, most)
        return began + seconds

    def confirms_at_once(self, level: Contract, promise: float, processes: int = 1) -> bool:
        """Whether the duel of a first candidate is to be its confirmation: there is no time for one after the other.

        Of public siamese, 0.8 s a step, the allocator's duel took 130 s, and its confirmation had no time.

        Args:
            processes: pairs of them that its duel would take.
        """
        if self._found.adopted or self._found.control is None or not self._found.control.pairs:
            return False
        left = self.first_ends(level, promise) - time.monotonic()
        whole = self.durations.of_confirmation(evidence.FEWEST)
        duel = self.durations.of_duel(replace(CANDIDATE, processes=processes))
        return self.time_to_confirm_first(level, promise) and left < _SPARE_OF_BOTH * (duel + whole)

    def time_to_confirm_first(self, level: Contract, promise: float) -> bool:
        """Whether the duel of a first candidate can be its confirmation."""
        left = self.first_ends(level, promise) - time.monotonic()
        return _ENOUGH_OF_IT * self.durations.of_confirmation(evidence.FEWEST) < left

    def rules_of_another_attempt(self, level: Contract, promise: float) -> Rules:
        """Of a duel that is a confirmation and has all the time that is left, of what lost a duel before.

        It has as many pairs of processes as tell what is promised, if there is time for them. Luck had its chance
        before: of 100 simulated tunes of nothing that helps (blocks 10 %, processes 5 %), 3 adopted something by such a
        duel at 5 %.
        """
        left = self.first_ends(level, promise) - time.monotonic()
        return replace(
            confirmation(self._confirmation_pairs(left, hoped(promise))), selects=True, alpha=_ALPHA_OF_ANOTHER
        )

    def first_ends(self, level: Contract, promise: float) -> float:
        """When a duel that is a confirmation has to be over: before the proof of its candidate."""
        return self.deadline - self.durations.of_proof(level, promise)

    def selection_ends(self, joining: Contract = Contract.EXACT, promise: float = 0.0) -> float:
        """When the last duel of a candidate has to be over.

        Where nothing is adopted yet, a first technique is worth more than the time to confirm it: what is established
        without is told as such. One that is exact is proved in its duel.
        """
        proof, adopted = self.proof_begins(joining, promise), len(self._found.adopted)
        if not adopted:
            unconfirmed = 0.0 if joining is Contract.EXACT else self._prover.seconds_needed(joining)
            return max(proof, self.deadline - unconfirmed)
        if self.contributions_known or self._found.needed():
            return proof
        if time.monotonic() + self.durations.of_field(2 * max(adopted, 2) + 2) > proof:
            return proof  # the contributions come too late already: their time is for candidates
        return proof - self.durations.of_field(2 * (adopted + 1) + 2)  # the duel that ends then may add one

    def pays(self, saving: float) -> bool:
        """Whether what is expected to save this share of a step gains more than a duel costs, over the user's runs."""
        length = self._found.run_seconds()
        if self._found.runs is None or length is None:
            return True
        return self._found.runs * length * saving / max(1.0, self._found.gain()) > self.durations.of_duel(CANDIDATE)

    def time_for_all(self, seconds: float) -> bool:
        """Whether candidates that take so long may be tried before what was adopted is confirmed."""
        return time.monotonic() + seconds < self.confirmation_begins()

    def time_for_another(self, start: float = 0.0, level: Contract = Contract.EXACT, promise: float = 0.0) -> bool:
        """Whether another candidate of this level may be tried, and proved, that adds so many seconds to the start."""
        return self.seconds_missing(start, level, promise) < 0

    def time_for_whole_duel(self, start: float, level: Contract, promise: float) -> bool:
        """Whether the duel of such a candidate comes to its last look. See `time_for_another`.

        Of `make demo`, another attempt at `allocator` began with 8 s until the last proof: "too few blocks".
        """
        needed = self.durations.of_duel(SCREENED) + start
        return time.monotonic() + needed < self.selection_ends(level, promise)

    def seconds_missing(self, start: float, level: Contract, promise: float) -> float:
        """Seconds by which the budget is too small, at least: with a larger one the proofs before it are longer.

        What is proved after its duel needs that to its first look: of `make demo`, a proof at `rounding` was begun with
        21 s that were left of 30, and broke off.
        """
        first = replace(SCREENED, looks=SCREENED.looks[:1])
        duel = _SHORTEST_DUEL_SECONDS if level is Contract.EXACT else self.durations.of_duel(first)
        needed = max(duel, self.durations.of_start()) + start
        return time.monotonic() + needed - self.selection_ends(level, promise)

    def seconds_missing_to_establish(self, seconds: float) -> float:
        """By how many the budget is too small for what takes so long to be adopted, and a shortest confirmation.

        A candidate is tried with less, as its duel may be all that there is time for. A new budget is not to be so: of
        a public diffusion model, 17 s a step, 90 s did not hold the first steps, and 5 min were advised.
        """
        return time.monotonic() + seconds + self.durations.of_confirmation(evidence.FEWEST) - self.deadline

    def time_to_run_duel_again(self) -> bool:
        """Whether there is time for another duel of a technique that gained nothing in the whole plan."""
        return time.monotonic() + self.durations.of_duel(AGAIN) < self.proof_begins()

    def time_between_epochs(self, steps: int) -> bool:
        """Whether there is time left, when all is settled, for so many steps of either side in processes of their own,
        and for what comes between two epochs, of which nothing is known yet."""
        return time.monotonic() + self.durations.of_start() + self.durations.of_steps(steps) < self.deadline

    def kept_for_epochs(self, steps: int) -> float:
        """Seconds that are kept for that once a plan is proved, where they are few and it can be confirmed as well.

        Of public super-resolution and of a Transformer more pairs of processes had all that was left of five minutes.
        Whole runs gained 1.03x and 1.28x where 1.14x and 1.47x were stated, without their evaluations.
        """
        seconds = self.durations.of_start() + 2 * self.durations.of_steps(steps)
        few = seconds < _EPOCHS_SHARE * (self.deadline - self._found.started)
        return seconds if few and time.monotonic() + seconds < self.shortest_confirmation_begins() else 0.0

    def time_for_duel(self, rules: Rules, start: float = 0.0) -> bool:
        """Whether there is time left, when all is settled, for another duel of the plan.

        Args:
            start: seconds that its new side adds to the start of a process.
        """
        return time.monotonic() + self.durations.of_duel(rules) + rules.processes * start < self.deadline

    def time_for_errors(self) -> bool:
        """Whether there is time left, when all is settled, for another trial that nobody times."""
        return time.monotonic() + 2 * self._prover.trial_seconds() < self.deadline
