"""Level `exact`: two runs are the same in every bit of every step that was hashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check, first_difference, judged_exact
from overdrive.proof.budget import FEWEST_STEPS
from overdrive.proof.runs import ProofRuns, broke_off
from overdrive.techniques.catalogue import catalogue


class ExactProof:
    """Proves by step digest logs: every step is hashed."""

    def __init__(self, runs: ProofRuns) -> None:
        self.begun = False  # the original's own log is there, or was asked for
        self.restricted = False  # the program repeats itself with deterministic operations, and only with them
        self._runs = runs

    def repeats(self, plain: TrialSpec, restricted: bool = False) -> Check:
        """The program against itself, bit for bit; where they differ, with what differs and who is to blame.

        `restricted`: find out as well whether it repeats itself with deterministic operations, in two more trials.
        """
        first, second = self._runs.digests(plain, "bits"), self._runs.digests(plain, "bits", again=True)
        if isinstance(first, ExitReason) or isinstance(second, ExitReason):
            return Check(None, f"it could not be run twice ({first if isinstance(first, ExitReason) else second})")
        difference = first_difference(first, second)
        if difference is None:
            return Check(Contract.EXACT, f"two runs of the untouched program are the same in {first.steps} steps")
        told = f"two runs of the untouched program differ: {difference}"
        if not restricted:
            short = self._runs.untimed.run(replace(plain, deterministic=True), min(self._runs.steps, FEWEST_STEPS))
            return Check(None, f"{told}{_blame([short])}")
        again = [self._runs.digests(replace(plain, deterministic=True), "bits", again=again) for again in (False, True)]
        if isinstance(again[0], ExitReason) or isinstance(again[1], ExitReason):
            return Check(None, f"{told}{_blame(again)}")
        if first_difference(again[0], again[1]) is None:
            self.restricted = True
            told += "; with deterministic operations they are the same"
        return Check(None, told)

    def compare(self, old: TrialSpec, new: TrialSpec) -> Check:
        """`new` against `old`, which is the program itself or was proved to be the same bit for bit."""
        self._runs.stage("proof: every step hashed")
        self.begun = True
        if self.restricted and _computes_alike(old, new):
            old, new = replace(old, deterministic=True), replace(new, deterministic=True)
        one, other = self._runs.digests(old, "bits"), self._runs.digests(new, "bits")
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return broke_off(one, other)
        return judged_exact(one, other)


def _computes_alike(old: TrialSpec, new: TrialSpec) -> bool:
    """Whether what is new leaves all of the program's operations as they are, and their order."""
    known = catalogue()
    return not any(known[name].computes for name, settings in new.techniques if (name, settings) not in old.techniques)


def _blame(trials: Sequence[Trace | ExitReason]) -> str:
    """The operation that PyTorch's deterministic mode refuses, as the end of a sentence."""
    for trial in trials:
        if isinstance(trial, ExitReason) and "deterministic" in trial.detail:
            operation = trial.detail.removeprefix("RuntimeError: ").split(" does not have")[0]
            return f"; {operation} has no deterministic implementation"
    return ""
