"""Level `exact`: two runs are the same in every bit of every step that was hashed."""

from __future__ import annotations

from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check, first_difference, judged_exact
from overdrive.proof.budget import FEWEST_STEPS
from overdrive.proof.runs import ProofRuns, broke_off


class ExactProof:
    """Proves by step digest logs: every step is hashed."""

    def __init__(self, runs: ProofRuns) -> None:
        self.begun = False  # the original's own log is there, or was asked for
        self._runs = runs

    def repeats(self, plain: TrialSpec) -> Check:
        """The program against itself, bit for bit; where they differ, with what differs and who is to blame."""
        first, second = self._runs.digests(plain, "bits"), self._runs.digests(plain, "bits", again=True)
        if isinstance(first, ExitReason) or isinstance(second, ExitReason):
            return Check(None, f"it could not be run twice ({first if isinstance(first, ExitReason) else second})")
        difference = first_difference(first, second)
        if difference is None:
            return Check(Contract.EXACT, f"two runs of the untouched program are the same in {first.steps} steps")
        return Check(None, f"two runs of the untouched program differ: {difference}{self._blame(plain)}")

    def compare(self, old: TrialSpec, new: TrialSpec) -> Check:
        """`new` against `old`, which is the program itself or was proved to be the same bit for bit."""
        self._runs.stage("proof: every step hashed")
        self.begun = True
        one, other = self._runs.digests(old, "bits"), self._runs.digests(new, "bits")
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return broke_off(one, other)
        return judged_exact(one, other)

    def _blame(self, plain: TrialSpec) -> str:
        """The operation that PyTorch's deterministic mode refuses, as the end of a sentence."""
        trial = self._runs.untimed.run(replace(plain, deterministic=True), min(self._runs.steps, FEWEST_STEPS))
        if isinstance(trial, ExitReason) and "deterministic" in trial.detail:
            operation = trial.detail.removeprefix("RuntimeError: ").split(" does not have")[0]
            return f"; {operation} has no deterministic implementation"
        return ""
