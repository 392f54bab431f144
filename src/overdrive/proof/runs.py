"""The trials of proofs: step digest logs of a program, its candidates and a perturbed run, each made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.proof_record import Invariant
from overdrive.core.records import ExitReason, StepRecord, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.invariants import compared, first_broken
from overdrive.machine.cpu import granted_cores
from overdrive.proof.budget import PAST_THE_END, ProofBudget, horizon, runs_at_once, short_epoch
from overdrive.trials.untimed import UntimedRunner

ALL = 1_000_000_000  # steps: to the program's end

_One = TypeVar("_One")
_Result = TypeVar("_Result")


class ProofRuns:
    """What the proofs of all levels share.

    Attributes:
        steps: how many of a program's steps a digest log covers.
        epoch: samples that an epoch is cut to for it; 0: nothing is cut.
        at_once: how many trials share the cores.
        asks_what_was_made: models were given what they had made, and other arithmetic makes it differ.
    """

    def __init__(
        self, untimed: UntimedRunner, facts: Facts, stage: Callable[[str], None], whole: bool, budget: ProofBudget
    ) -> None:
        """`whole`: runs go to the program's end."""
        self.untimed = untimed
        self.facts = facts
        self.stage = stage
        self.budget = budget
        self.steps = ALL if whole else horizon(facts, budget.digests)
        self.epoch = 0 if whole else short_epoch(facts, self.steps)
        self.at_once = runs_at_once(facts, budget)
        self.asks_what_was_made = False
        self._bears_it = False  # the program, that its epochs are cut
        self._perturbed_spec: TrialSpec | None = None
        self.seen: tuple[StepRecord, ...] = ()  # what went into the steps of the program compared last

    def digests(self, spec: TrialSpec, kind: str, again: bool = False, threads: int = 0) -> Trace | ExitReason:
        # Under other threads a program may feed its model other bits, which must not look like what the model made.
        name = f"{kind} {spec.name()} {threads} {self.epoch}{' restricted' * spec.deterministic}{' again' * again}"
        digests = replace(self.cut(spec), digests=kind, threads=threads)
        return self.untimed.known(name, lambda: self.untimed.run(digests, self.steps))

    def cut(self, spec: TrialSpec) -> TrialSpec:
        """The same, with epochs as short as in digest logs."""
        return replace(spec, epoch=self.epoch)

    def original(self, spec: TrialSpec, kind: str, again: bool = False) -> Trace | ExitReason:
        """The digest log of what others are compared with; it is decided by it whether epochs are cut."""
        trace = self.digests(spec, kind, again)
        return self.original(spec, kind, again) if self._cuts_otherwise(trace) else trace

    @property
    def may_not_bear_cuts(self) -> bool:
        """Whether epochs are cut, and no log of the program has shown yet that it bears it."""
        return self.epoch > 0 and not self._bears_it

    def settle_cuts(self, borne: bool) -> None:
        """From now on all trials have the same epochs: those of these, or whole ones."""
        self._bears_it = borne
        if not borne:
            self.epoch = 0

    def _cuts_otherwise(self, original: Trace | ExitReason) -> bool:
        """Whether its log is to be made again: it failed, perhaps since it counts its samples, or its few epochs came
        to an end before the log was long enough."""
        if not self.may_not_bear_cuts:
            return False
        if isinstance(original, ExitReason):
            if original.kind == "late":
                return False
            self.settle_cuts(borne=False)
            return True
        self.settle_cuts(borne=True)
        if not 0 < original.steps < self.steps:
            return False
        self.epoch = int(self.epoch * (self.steps - PAST_THE_END) / original.steps)
        return True

    def perturbed(self, spec: TrialSpec) -> Trace | ExitReason:
        """Shows what the model is given that it has not made itself; of the first program that was asked for."""
        self._perturbed_spec = self._perturbed_spec or spec
        return self.original(self._perturbed_spec, "perturbed")

    def same_inputs(self, old: TrialSpec, new: TrialSpec) -> tuple[Invariant, ...] | Check:
        """What was compared, where both see the same data, steps and learning rates; else the check that failed."""
        self.stage("proof: same samples, steps and learning rates")
        self._perturbed_spec = self._perturbed_spec or old
        log = lambda each, threads: self.digests(each[0], each[1], threads=threads)  # noqa: E731
        one, other = self.side_by_side(log, ((old, "inputs"), (new, "inputs")))
        if self._cuts_otherwise(one):
            return self.same_inputs(old, new)
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return broke_off(one, other)
        self.seen = one.digests
        of = self._perturbed_spec
        return self.compared(one, other, Contract.STATISTICAL, lambda: self.side_by_side(log, ((of, "perturbed"),))[0])

    def same_inputs_in(self, one: Trace, other: Trace, old: TrialSpec) -> tuple[Invariant, ...] | Check:
        """The same of runs that were made for their answers, and noted what goes into their calls by the way.

        Args:
            one: of `old`, which only calls its model.
        """
        self._perturbed_spec = of = self._perturbed_spec or old
        one, other = (
            replace(each, steps=min(each.steps, self.steps), digests=each.digests[: self.steps])
            for each in (one, other)
        )  # what tells what the model made itself is no longer
        return self.compared(one, other, Contract.STATISTICAL, lambda: self.digests(of, "shaken"))

    def gives_back(self, one: Trace, old: TrialSpec) -> bool | ExitReason:
        """Whether a program that only calls its model gives it what that has made (a text that grows by its words), as
        far as the steps of a digest log tell.

        Args:
            one: of `old`.
        """
        moved = self.digests(self._perturbed_spec or old, "shaken")
        if isinstance(moved, ExitReason):
            return moved if moved.kind == "late" else False
        return any(its.inputs != moved_its.inputs for its, moved_its in zip(one.digests, moved.digests, strict=False))

    def compared(
        self, one: Trace, other: Trace, level: Contract, perturbed: Callable[[], Trace | ExitReason]
    ) -> tuple[Invariant, ...] | Check:
        """What was compared of two digest logs, where they agree; else the check that failed.

        Args:
            perturbed: makes the log that tells data from what the model made itself. It is asked for only where
                something differs: of public MNIST under `statistical` it took 20 s, for nothing.
        """
        invariants = compared(one, other, level)
        if first_broken(invariants) is None:
            return invariants
        moved = perturbed()
        if isinstance(moved, ExitReason) and moved.kind == "late":
            return broke_off(one, moved)  # without it, what the model made itself looks like other data
        self.asks_what_was_made = True
        invariants = compared(one, other, level, None if isinstance(moved, ExitReason) else moved)
        wrong = first_broken(invariants)
        return Check(None, wrong.told, invariants=invariants) if wrong else invariants

    def rounds(self, trials: int) -> int:
        """So many trials, as many at once as the machine allows, one after the other."""
        return -(-trials // self.at_once)

    def seconds_for_inputs(self) -> float:
        """An estimate for `same_inputs`."""
        return self.rounds(2) * self.untimed.digests_seconds + self.seconds_for_what_was_made()

    def seconds_for_what_was_made(self) -> float:
        """An estimate for the log that tells what the model was given from what it had made, where it takes one."""
        return self.asks_what_was_made * self.untimed.digests_seconds

    def side_by_side(self, run: Callable[[_One, int], _Result], each: Sequence[_One]) -> list[_Result]:
        """`run` of each, some at once; it is told how many threads a trial gets (0: as many as it likes)."""
        at_once = self.at_once
        threads = granted_cores() // at_once if at_once > 1 else 0
        pool = ThreadPoolExecutor(at_once)
        try:
            return list(pool.map(run, each, [threads] * len(each)))
        except Exception:
            pool.shutdown()  # others are under way
            raise
        except BaseException:  # Ctrl-C: trials may take minutes yet, and the pool's end is theirs
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            pool.shutdown(wait=False)


def broke_off(one: Trace | ExitReason, other: Trace | ExitReason) -> Check:
    """A check that establishes nothing, since a trial of the proof did not come to its end."""
    exit_reason = other if isinstance(other, ExitReason) else one
    late = any(isinstance(each, ExitReason) and each.kind == "late" for each in (one, other))
    return Check(None, f"its proof broke off ({exit_reason})", late=late)
