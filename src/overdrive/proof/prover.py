"""Proves, in untimed trials, at which level a plan is still the same program.

What is compared is decided by `evidence`; the trials are made by `trials`; here is what is run, in which order, and
what is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.metric import Metric
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.registration import LOOKS
from overdrive.proof.agreement import AgreementProof
from overdrive.proof.budget import MOST_STEPS, ProofBudget, replayed_within
from overdrive.proof.exact import ExactProof
from overdrive.proof.rounding import RoundingProof
from overdrive.proof.runs import ProofRuns
from overdrive.proof.statistical import StatisticalProof
from overdrive.proof.whole_runs import WholeRunsProof
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.untimed import UntimedRunner

_SPARE = 1.2  # by which a trial whose steps are hashed may take longer than is reckoned


class Prover:
    """All proofs of one tune or verification. What the original did is run once and kept."""

    def __init__(
        self,
        untimed: UntimedRunner,
        checkpoint: TuneCheckpoint,
        facts: Facts,
        stage: Callable[[str], None] = lambda text: None,
        metric: Metric | None = None,
        whole: bool = False,
        proof_budget: ProofBudget | None = None,
        margin: float | None = None,
    ) -> None:
        """
        Args:
            whole: runs go to the program's end.
            margin: the difference of the metric that is allowed, in its own unit, or the share of other answers.
        """
        self._runs = ProofRuns(untimed, facts, stage, whole, proof_budget or ProofBudget())
        self._exact = ExactProof(self._runs)
        self._rounding = RoundingProof(self._runs)
        self._whole_runs = WholeRunsProof(self._runs, metric or Metric(), margin) if facts.inference else None
        # Of a program that only calls its model a metric is compared besides its answers, by a margin of its own.
        of_answers = None if self.compares_whole_runs else margin
        self.by_seeds = StatisticalProof(self._runs, checkpoint, metric or Metric(), whole, margin)
        self._statistical = AgreementProof(self._runs, of_answers) if facts.inference else self.by_seeds
        self.repeats = self._exact.repeats
        self.exact = self._exact.compare
        self.rounding = self._rounding.compare
        self.few_states = self._rounding.few_states
        self.error_against_fp64 = self._rounding.error_against_fp64
        self.screened = self._statistical.screened
        self.seed_curves = self._statistical.seed_curves

    @property
    def restricted(self) -> bool:
        """Whether bits can be compared only with deterministic operations: of what computes, nothing is proved."""
        return self._exact.restricted

    def statistical(self, old: TrialSpec, new: TrialSpec, deadline: float, latest: float | None = None) -> Check:
        """`new` against `old` until `deadline` (time.monotonic()); until `latest` where it will have told by then."""
        return self._statistical.compare(old, new, deadline, latest)

    @property
    def compares_whole_runs(self) -> bool:
        return self._whole_runs is not None and self._whole_runs.wanted

    def lacks_the_metric(self, plain: TrialSpec) -> Check | None:
        """The check that fails for want of the program's own number; None where it is there, or not asked for."""
        return self._whole_runs.lacking(plain) if self._whole_runs else None

    def impossible(self, level: Contract) -> str:
        """Why nothing can be proved at this level, whatever the candidate, as far as is known by now; else empty."""
        answers = self._statistical
        return answers.impossible if level is Contract.STATISTICAL and isinstance(answers, AgreementProof) else ""

    def with_the_metric(self, check: Check, plain: TrialSpec, new: TrialSpec) -> Check:
        """The check, and that of the program's own number after whole runs, where such a one was asked for."""
        return self._whole_runs.added(check, plain, new) if self._whole_runs else check

    def steps_take(self, seconds: float) -> None:
        """From now on a step of the original takes so long: sooner, under what was proved exact."""
        self._statistical.step_seconds = seconds

    def end_by(self, moment: float) -> None:
        """A proof that is not done then (time.monotonic()) has established nothing."""
        self._runs.untimed.until = moment

    def seconds_needed(
        self, level: Contract, plain: TrialSpec | None = None, gain: float = 1.0, seeds: int = LOOKS[0]
    ) -> float:
        """An estimate for the proof of a whole plan at this level; `plain`, `gain`, `seeds`: see `StatisticalProof`."""
        whole = self._whole_runs.seconds_needed() if self._whole_runs else 0.0
        return whole + self._seconds_needed(level, plain, gain, seeds)

    def _seconds_needed(self, level: Contract, plain: TrialSpec | None, gain: float, seeds: int) -> float:
        if level is Contract.STATISTICAL:
            return self._statistical.seconds_needed(plain, gain, seeds)
        runs = self._runs
        covered = replayed_within(runs.steps) if level is Contract.ROUNDING else min(runs.steps, MOST_STEPS)
        steps = min(covered, runs.budget.length or covered)
        run = runs.budget.start + steps * runs.facts.step_seconds
        if level is Contract.ROUNDING:
            return self._rounding.seconds_needed(steps, run)
        # The original's own log is made once, the first time.
        return (1 if self._exact.begun else 2) * _SPARE * max(run, runs.untimed.digests_seconds)

    def trial_seconds(self) -> float:
        """Seconds of the longest trial under the program's own seed so far."""
        return self._runs.untimed.seconds
