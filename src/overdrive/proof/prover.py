"""Proves, in trials that nobody times, at which level a plan is still the same program.

`exact`: digest logs of both, every step hashed. `rounding`: replayed steps against fp64. `statistical`: runs
under many seeds of both, judged with a margin that is written down before the candidate's first run. The
comparing itself is `evidence`; the trials are `trials`; here is what is run, in which order, and what is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, TypeVar

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.metric import Metric
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence import rounding
from overdrive.evidence.equivalence import (
    Check,
    compared,
    first_broken,
    first_difference,
    judged_exact,
    screened,
    step_losses,
    too_short_to_look,
)
from overdrive.evidence.statistical import Outcome, Registration, Run, judge, margin_from
from overdrive.machine.cpu import granted_cores
from overdrive.proof.budget import FEWEST_STEPS, MOST_STEPS, ProofBudget, horizon, runs_at_once
from overdrive.proof.replays import STATES, Teaching
from overdrive.trials.checkpoint import Memory
from overdrive.trials.untimed import UntimedRunner

_RUN_STEPS = 300
_ALL = 1_000_000_000
_LOOKS = (10, 16)  # runs an arm: power 0.79 and 0.97 at a margin of 1.5 standard deviations (evidence/statistical.py)
_FIRST_LOOK, _FIRST_LOOK_SECONDS = 3, 120.0
_SPARE = 1.1  # for runs that take longer than the first: with nine seeds of ten nothing is proved

_One = TypeVar("_One")
_Result = TypeVar("_Result")


class Prover:
    """All proofs of one tune or verification. What the original did is run once and kept."""

    def __init__(
        self,
        untimed: UntimedRunner,
        memory: Memory,
        facts: Facts,
        stage: Callable[[str], None] = lambda text: None,
        metric: Metric | None = None,
        whole: bool = False,
        proof_budget: ProofBudget | None = None,
    ) -> None:
        """`whole`: runs go to the program's end."""
        self.metric = metric or Metric()
        self._proof_budget = proof_budget or ProofBudget()
        # Of digest logs and replayed steps.
        self.steps = _ALL if whole else horizon(facts, self._proof_budget.digests)
        self._whole = whole or not self.metric.is_loss  # a metric is printed at the end, as a rule
        self._untimed = untimed
        self._memory = memory
        self._facts = facts
        self.step_seconds = facts.step_seconds  # of the original as it is run here: sooner, under what was proved exact
        self._at_once = runs_at_once(facts, self._proof_budget)
        self._run_steps = _ALL if self._whole else self._steps_of_a_run()  # of runs under seeds
        self._stage = stage
        self._teaching: Teaching | None = None
        self._hashed = False  # whether a proof of the level exact was begun
        self._perturbed_spec: TrialSpec | None = None
        self._originals: dict[int, Run] = {}
        self.run_seconds = 0.0  # of the longest run under a seed so far

    def end_by(self, moment: float) -> None:
        """A proof that is not done then (time.monotonic()) has established nothing."""
        self._untimed.until = moment

    # -- exact ----------------------------------------------------------------------------------

    def repeats(self, plain: TrialSpec) -> Check:
        """The program against itself, bit for bit; where they differ, with what differs and who is to blame."""
        first, second = self._digests(plain, "bits"), self._digests(plain, "bits", again=True)
        if isinstance(first, ExitReason) or isinstance(second, ExitReason):
            return Check(None, f"it could not be run twice ({first if isinstance(first, ExitReason) else second})")
        difference = first_difference(first, second)
        if difference is None:
            return Check(Contract.EXACT, f"two runs of the untouched program are the same in {first.steps} steps")
        return Check(None, f"two runs of the untouched program differ: {difference}{self._blame(plain)}")

    def _blame(self, plain: TrialSpec) -> str:
        """The operation that PyTorch's deterministic mode refuses, as the end of a sentence."""
        trial = self._untimed.run(replace(plain, deterministic=True), min(self.steps, FEWEST_STEPS))
        if isinstance(trial, ExitReason) and "deterministic" in trial.detail:
            operation = trial.detail.removeprefix("RuntimeError: ").split(" does not have")[0]
            return f"; {operation} has no deterministic implementation"
        return ""

    def exact(self, old: TrialSpec, new: TrialSpec) -> Check:
        """`new` against `old`, which is the program itself or was proved to be the same bit for bit."""
        self._stage("proof: every step hashed")
        self._hashed = True
        one, other = self._digests(old, "bits"), self._digests(new, "bits")
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return _broke_off(one, other)
        return judged_exact(one, other)

    def lengthen(self, seconds: float) -> None:
        """Hash as many steps from now on as there should be, if the budget had them shortened and can spare so many."""
        wanted = horizon(self._facts)
        if self.steps < wanted and 2 * (self._proof_budget.start + wanted * self._facts.step_seconds) < seconds:
            self.steps = wanted
            self._untimed.forget("bits")

    # -- rounding -------------------------------------------------------------------------------

    def rounding(self, plain: TrialSpec, new: TrialSpec) -> Check:
        """`new` against `plain`, in steps from states that a reference run saved along its run.

        Args:
            plain: the untouched program, or what is the same bit for bit; the first that was given is the reference run.
        """
        self._stage("proof: replayed steps against fp64")
        teaching = self._teaching = self._teaching or Teaching(self._untimed, plain, min(self.steps, MOST_STEPS))
        refusal = teaching.begin()
        if refusal:
            return Check(None, refusal)
        plain = teaching.plain
        one, other = teaching.candidate(plain), teaching.candidate(new)
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return _broke_off(one, other)
        within = _call_starts(one) & _call_starts(other) if one.rests or other.rests else frozenset()
        if within and len(within.intersection(one.replay["states"], other.replay["states"])) < STATES:
            steps = min(self.steps, MOST_STEPS)
            self._untimed.forget("candidate")  # of another reference run
            teaching = Teaching(self._untimed, plain, steps, within)
            refusal = teaching.begin()
            if refusal:
                return Check(None, refusal)
            one, other = teaching.candidate(plain), teaching.candidate(new)
            self._untimed.forget("candidate")
            if isinstance(one, ExitReason) or isinstance(other, ExitReason):
                return _broke_off(one, other)
        perturbed = self._perturbed(plain)
        if isinstance(perturbed, ExitReason) and perturbed.kind == "late":
            return _broke_off(one, perturbed)  # without it, what the model made itself looks like other data
        told = compared(one, other, Contract.ROUNDING, None if isinstance(perturbed, ExitReason) else perturbed)
        wrong = first_broken(told)
        if wrong:
            return Check(None, wrong.told, invariants=told)
        careful = teaching.careful
        # Steps in the midst of a call that makes many cannot be begun from a saved state: by either, then.
        skipped = {step for trace in (one, other) for step in trace.replay.get("out_of_reach", ())}
        mine, its = ([row for row in rounding.rows_of(each.replay) if row.step not in skipped] for each in (one, other))
        result = rounding.judge(mine, its, careful=bool(careful))
        evidence = {"rounding": {**result.evidence, "flag": careful or None}}
        return Check(Contract.ROUNDING if result.holds else None, result.sentence, invariants=told, evidence=evidence)

    def error_against_fp64(self, plain: TrialSpec, spec: TrialSpec) -> float | None:
        """Of a gradient, as a share of its size, in replayed steps; None where there is no fp64 reference."""
        teaching = self._teaching = self._teaching or Teaching(self._untimed, plain, min(self.steps, MOST_STEPS))
        if teaching.begin() or teaching.careful:
            return None
        trace = teaching.candidate(spec)
        return None if isinstance(trace, ExitReason) else rounding.relative_error(rounding.rows_of(trace.replay))

    # -- statistical ----------------------------------------------------------------------------

    def statistical(
        self,
        old: TrialSpec,
        new: TrialSpec,
        deadline: float,
        tolerance: float | None = None,
        latest: float | None = None,
    ) -> Check:
        """`new` against `old` under many seeds each, as long as `deadline` (time.monotonic()) allows.

        Args:
            latest: until when it may go on where it will then have come to a look: most of a proof is worth nothing.
        """
        told = self._same_inputs(old, new)
        if isinstance(told, Check):
            return told
        fewest = _LOOKS[0]
        original = self._original_arm(old, range(1, fewest + 1), deadline)
        if len(original) < fewest:
            return Check(None, f"the budget allowed {len(original)} of {fewest} seeds: not established")
        if sum(run.converged for run in original) < 2:
            return Check(None, self.metric.missing())
        registration = self._register(old, new, original, tolerance)
        candidate: list[Run] = []
        outcome: Outcome | None = None
        pace = self.run_seconds
        for look in registration.looks:
            its, mine = (-(-(look - len(arm)) // self._at_once) for arm in (original, candidate))  # runs, some at once
            until = time.monotonic() + its * self.run_seconds + mine * pace
            ends = latest if latest is not None and until < latest else deadline
            if outcome is not None and until > ends:
                break  # part of a look says nothing: the time is for the proof of what is left
            original = self._original_arm(old, registration.seeds[:look], ends)
            began = time.monotonic()
            candidate = self._arm(new, registration.seeds[:look], ends) if len(original) == look else candidate
            if len(candidate) < look:
                break
            pace = (time.monotonic() - began) / mine
            outcome = judge(registration, original, candidate)
            if outcome.equivalent is not None:
                break
        if outcome is None:
            return Check(None, f"the budget allowed {len(candidate)} of {fewest} seeds: not established")
        arms = {"original": original, "candidate": candidate}
        evidence = {
            **outcome.to_dict(),
            **registration.to_dict(),
            **{name: [each.value if math.isfinite(each.value) else None for each in arm] for name, arm in arms.items()},
            "seeds": {name: [each.seed for each in arm] for name, arm in arms.items()},
        }
        return Check(
            Contract.STATISTICAL if outcome.equivalent else None,
            outcome.sentence,
            proxy=not registration.whole,
            invariants=told,
            evidence={"statistical": evidence},
        )

    def screened(self, old: TrialSpec, new: TrialSpec, one: Trace, other: Trace, closer: bool = False) -> Check:
        """A first look at a candidate, by the traces of its duel: same inputs, and a late loss among a few seeds'.

        Args:
            closer: one that lies outside the spread of a few seeds, which may be half as wide as it should be, is
                looked at among as many as the proof of the whole plan is going to need.
        """
        told = self._same_inputs(old, new)
        if isinstance(told, Check):
            return told
        if undecided := too_short_to_look(one, other):
            return undecided
        for count in (_FIRST_LOOK, _LOOKS[0]) if closer else (_FIRST_LOOK,):
            runs = self._original_arm(old, range(1, count + 1), time.monotonic() + _FIRST_LOOK_SECONDS)
            check = screened(one, other, [run.losses for run in runs if run.converged])
            if check.level is not None or not check.proxy or len(runs) < count:  # what else is wrong, seeds don't mend
                break
        return check

    def seconds_needed(self, level: Contract, plain: TrialSpec | None = None, gain: float = 1.0) -> float:
        """An estimate for the proof of a whole plan at this level.

        Args:
            plain: what it will be compared with, some of whose runs under seeds may be there.
            gain: of the plan over that, which shortens its runs. Half of it is counted on: runs share the cores, each
                with fewer threads than the program had when the gain was measured.
        """
        proof_budget = self._proof_budget
        if level is not Contract.STATISTICAL:
            steps = min(self.steps, proof_budget.length or self.steps, MOST_STEPS)
            usual = proof_budget.start + steps * self._facts.step_seconds
            needed = max(usual, self._untimed.seconds)
            # The original's own trials are made once, the first time.
            if level is Contract.EXACT:
                return (1.5 if self._hashed else 3.0) * needed
            given_up = self._untimed.given_up
            if self._teaching is not None and self._teaching.begun:
                return 1.5 * needed + given_up.get("candidate", 0.0)
            return 3.0 * needed + max(given_up.values(), default=0.0)
        each = self.run_seconds or 3.0 * self._untimed.digests_seconds
        if not self.run_seconds and not self._whole:
            steps = min(self._run_steps, proof_budget.length or self._run_steps)
            each = proof_budget.start + steps * self.step_seconds * self._at_once
        started = min(proof_budget.start, each)
        seeds = range(1, _LOOKS[0] + 1)
        there = sum(plain is not None and self._memory.run(self._run_name(plain, seed)) is not None for seed in seeds)
        rounds = -(-(len(seeds) - there) // self._at_once)  # of runs at once, until the original has its first look
        candidate = -(-len(seeds) // self._at_once) * (started + (each - started) / max(1.0, (1 + gain) / 2))
        same_inputs = 2 * self._untimed.digests_seconds  # three trials, two at a time
        return same_inputs + _SPARE * (rounds * each + candidate)

    def _steps_of_a_run(self) -> int:
        """As many as there is time for; runs at once share the cores. A tune that goes on keeps to its first answer."""
        most = max(self.steps, _RUN_STEPS)
        step = self._facts.step_seconds * self._at_once
        if not step or self._proof_budget.seconds == math.inf:
            return most
        name = f"steps of a run | {self.metric.name}"
        known = self._memory.registration(name)
        if known is None:
            rounds = 2 * -(-_LOOKS[0] // self._at_once)  # of runs at once, until both arms have their first look
            each = self._proof_budget.seconds / rounds - self._proof_budget.start
            known = {"steps": max(FEWEST_STEPS, min(most, int(each / step)))}
            self._memory.register(name, known)
        return int(known["steps"])

    def trial_seconds(self) -> float:
        """Of the longest trial under the program's own seed so far."""
        return self._untimed.seconds

    def seed_curves(self) -> list[list[float]]:
        """Losses of the original under other seeds, as far as they were run."""
        return [list(run.losses) for run in self._originals.values() if run.losses]

    def _same_inputs(self, old: TrialSpec, new: TrialSpec) -> tuple[Any, ...] | Check:
        self._stage("proof: same samples, steps and learning rates")
        self._perturbed_spec = self._perturbed_spec or old
        wanted = ((old, "inputs"), (new, "inputs"), (self._perturbed_spec, "perturbed"))
        one, other, perturbed = self._side_by_side(lambda each, threads: self._digests(*each, threads=threads), wanted)
        if isinstance(one, ExitReason) or isinstance(other, ExitReason):
            return _broke_off(one, other)
        if isinstance(perturbed, ExitReason) and perturbed.kind == "late":
            return _broke_off(one, perturbed)
        told = compared(one, other, Contract.STATISTICAL, None if isinstance(perturbed, ExitReason) else perturbed)
        wrong = first_broken(told)
        return Check(None, wrong.told, invariants=told) if wrong else told

    def _register(self, old: TrialSpec, new: TrialSpec, original: list[Run], tolerance: float | None) -> Registration:
        """Written down before the candidate's first run, and never changed: a resumed proof finds it there."""
        name = f"{old.name()} | {new.name()} | {self.metric.name} | {self._run_steps} | {tolerance}"
        known = self._memory.registration(name)
        if known:
            return Registration.from_dict(known)
        margin, rule, told_by = margin_from(original, tolerance)
        whole = self._whole or all(len(run.losses) < self._run_steps for run in original)
        registration = Registration(
            metric=self.metric.name,
            horizon=0 if whole else self._run_steps,
            whole=whole,
            seeds=tuple(range(1, _LOOKS[-1] + 1)),
            looks=_LOOKS,
            margin=margin,
            margin_rule=rule,
            margin_runs=told_by,
        )
        self._memory.register(name, registration.to_dict())
        return registration

    def _original_arm(self, spec: TrialSpec, seeds: Sequence[int], deadline: float) -> list[Run]:
        runs = self._arm(spec, seeds, deadline)
        self._originals.update((run.seed, run) for run in runs)
        return runs

    def _arm(self, spec: TrialSpec, seeds: Sequence[int], deadline: float) -> list[Run]:
        """One run a seed, some at once, until the deadline; those of an earlier proof are taken as they are."""
        new = [seed for seed in seeds if self._memory.run(self._run_name(spec, seed)) is None]
        if new:
            self._stage(f"proof: {spec.name()} under {len(new)} seeds")

        def one(seed: int, threads: int) -> Run | None:
            known = self._memory.run(self._run_name(spec, seed))
            if known is not None:
                return Run(**{**known, "losses": tuple(known["losses"])})
            if time.monotonic() + self.run_seconds > deadline:
                return None
            return self._seeded(replace(spec, seed=seed, threads=threads, returned=self.metric.function), seed)

        return [run for run in self._side_by_side(one, seeds) if run is not None]

    def _side_by_side(self, run: Callable[[_One, int], _Result], each: Sequence[_One]) -> list[_Result]:
        """`run` of each, some at once; it is told how many threads a trial gets (0: as many as it likes)."""
        at_once = self._at_once
        threads = granted_cores() // at_once if at_once > 1 else 0
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(run, each, [threads] * len(each)))

    def _seeded(self, spec: TrialSpec, seed: int) -> Run | None:
        began = time.monotonic()
        output: list[str] = []
        trace = self._untimed.run(spec, self._run_steps, output)
        self.run_seconds = max(self.run_seconds, time.monotonic() - began)
        if isinstance(trace, ExitReason):
            return None if trace.kind == "late" else Run(seed, float("nan"), ())
        losses = tuple(step_losses(trace)[: self._run_steps])  # one that makes many steps in a call may have made more
        run = Run(seed, self.metric.value(losses, output[0] if output else "", trace.returned), losses)
        self._memory.remember_run(self._run_name(spec, seed), asdict(run))
        return run

    def _run_name(self, spec: TrialSpec, seed: int) -> str:
        return f"{spec.name()} | seed {seed} | {self.metric.name} | {self._run_steps}"

    # -- trials ---------------------------------------------------------------------------------

    def _digests(self, spec: TrialSpec, kind: str, again: bool = False, threads: int = 0) -> Trace | ExitReason:
        # Under other threads a program may feed its model other bits, which must not look like what the model made.
        name = f"{kind} {spec.name()} {threads}{' again' if again else ''}"
        digests = replace(spec, digests=kind, threads=threads)
        return self._untimed.known(name, lambda: self._untimed.run(digests, self.steps))

    def _perturbed(self, spec: TrialSpec) -> Trace | ExitReason:
        """Shows what the model is given that it has not made itself; of the first order that was asked for."""
        self._perturbed_spec = self._perturbed_spec or spec
        return self._digests(self._perturbed_spec, "perturbed")


def _call_starts(trace: Trace) -> frozenset[int]:
    """The steps that a state can be loaded before: all, or those that a call begins with."""
    return frozenset(step + 1 for step in trace.rests or range(1, trace.steps + 1))


def _broke_off(one: Trace | ExitReason, other: Trace | ExitReason) -> Check:
    return Check(None, f"its proof broke off ({other if isinstance(other, ExitReason) else one})")
