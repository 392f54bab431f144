"""Level `exact`: two runs are the same in every bit of every step that was hashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check, first_difference, judged_exact
from overdrive.proof.runs import ProofRuns, broke_off
from overdrive.techniques.catalogue import catalogue

_FEW = 5  # steps, in which a program that does not repeat itself mostly shows it
_DIFFER = "two runs of the untouched program differ"


class ExactProof:
    """Proves by step digest logs: every step is hashed."""

    def __init__(self, runs: ProofRuns) -> None:
        self.begun = False  # the original's own log is there, or was asked for
        self.restricted = False  # the program repeats itself with deterministic operations, and only with them
        self._runs = runs

    def repeats(self, plain: TrialSpec, restricted: bool = False, in_doubt: bool = False) -> Check:
        """The program against itself, bit for bit; where they differ, with what differs and who is to blame.

        Args:
            restricted: find out as well whether it repeats itself with deterministic operations, in two more trials.
            in_doubt: two of its runs were seen to differ already: look at its first few steps first.
        """
        if in_doubt and not restricted and (told := self._differs_at_once(plain)):
            return Check(None, told)
        first, second = self._runs.original(plain, "bits"), self._runs.digests(plain, "bits", again=True)
        if isinstance(first, ExitReason) or isinstance(second, ExitReason):
            return Check(None, f"it could not be run twice ({first if isinstance(first, ExitReason) else second})")
        difference = first_difference(first, second)
        if difference is None:
            return Check(Contract.EXACT, f"two runs of the untouched program are the same in {first.steps} steps")
        told = f"{_DIFFER}: {difference}"
        if not restricted:
            return Check(None, f"{told}{_blamed([self._begin(replace(plain, deterministic=True))])}")
        again = [self._runs.digests(replace(plain, deterministic=True), "bits", again=again) for again in (False, True)]
        if isinstance(again[0], ExitReason) or isinstance(again[1], ExitReason):
            return Check(None, f"{told}{_blamed(again)}")
        if first_difference(again[0], again[1]) is None:
            self.restricted = True
            told += "; with deterministic operations they are the same"
        return Check(None, told)

    def _differs_at_once(self, plain: TrialSpec) -> str:
        """How two runs differ in their first few steps, if they do: on a GPU many programs do so in the first one, and
        whole logs of it, each step hashed, left no time to a tune of two minutes."""
        spec = replace(plain, digests="bits")
        first, second, blamed = self._runs.side_by_side(
            lambda each, _: self._begin(each), [spec, spec, replace(plain, deterministic=True)]
        )
        if isinstance(first, ExitReason) or isinstance(second, ExitReason):
            return ""
        difference = first_difference(first, second)
        return f"{_DIFFER}: {difference}{_blamed([blamed])}" if difference else ""

    def _begin(self, spec: TrialSpec) -> Trace | ExitReason:
        """Its first few steps."""
        return self._runs.untimed.run(spec, min(self._runs.steps, _FEW))

    def compare(self, old: TrialSpec, new: TrialSpec) -> Check:
        """`new` against `old`, which is the program itself or was proved to be the same bit for bit."""
        self._runs.stage("proof: every step hashed")
        self.begun = True
        if self.restricted and _computes_alike(old, new):
            old, new = replace(old, deterministic=True), replace(new, deterministic=True)
        one, other = self._runs.original(old, "bits"), self._runs.digests(new, "bits")
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return broke_off(one, other)
        return replace(judged_exact(one, other), left_out=other.left_out)


def _computes_alike(old: TrialSpec, new: TrialSpec) -> bool:
    """Whether what is new leaves all of the program's operations as they are, and their order."""
    known = catalogue()
    return not any(known[name].computes for name, settings in new.techniques if (name, settings) not in old.techniques)


def _blamed(trials: Sequence[Trace | ExitReason]) -> str:
    """The operation that PyTorch's deterministic mode refuses, as the end of a sentence."""
    for trial in trials:
        if isinstance(trial, ExitReason) and "deterministic" in trial.detail:
            operation = trial.detail.removeprefix("RuntimeError: ").split(" does not have")[0]
            return f"; {operation} has no deterministic implementation"
    return ""
