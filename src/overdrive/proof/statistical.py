"""Level `statistical`: runs of both under the same seeds, judged by a margin that was written down before."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.json_data import from_json, to_json
from overdrive.core.metric import Metric
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check, screened, step_losses, too_short_to_look
from overdrive.evidence.margin import margin_from, runs_needed
from overdrive.evidence.products import PRINTED, numbers_of, predictions_of
from overdrive.evidence.registration import LOOKS, SPENT, ArmRun, Registration
from overdrive.evidence.statistical import Outcome, judge
from overdrive.proof.budget import FEWEST_STEPS
from overdrive.proof.repeated import unsteady, without
from overdrive.proof.runs import ALL, ProofRuns
from overdrive.trials.checkpoint import TuneCheckpoint

_RUN_STEPS = 300
_LOOKED_AT = 4  # what is kept of a run; those of versions that kept less, or another metric, are made again
_TWICE = 2  # seeds under which the original runs again: a time that comes near by luck does not come near twice
_MOST_LOOK = 64  # runs an arm, for a margin that the user stated
_FIRST_LOOK, _FIRST_LOOK_SECONDS = 3, 120.0
_SPARE = 1.1  # for runs that take longer than the first: with nine seeds of ten nothing is proved


class StatisticalProof:
    """Proves by an equivalence test over seeds. What the original came to is run once and kept in the ledger."""

    def __init__(
        self, runs: ProofRuns, checkpoint: TuneCheckpoint, metric: Metric, whole: bool, tolerance: float | None = None
    ) -> None:
        """`tolerance`: the difference of the metric that is allowed, in its own unit; None: by the rule."""
        self.run_seconds = 0.0  # of the longest run under a seed so far
        self.step_seconds = runs.facts.step_seconds
        self._metric = metric
        self._tolerance = tolerance
        self._runs = runs
        self._checkpoint = checkpoint
        self._whole = whole or not metric.is_loss  # a metric is printed at the end, as a rule
        self._run_steps = ALL if self._whole else self._steps_of_a_run()  # of runs under seeds
        self._originals: dict[int, ArmRun] = {}
        self._again: list[ArmRun] = []  # the original's first seeds once more, where they were asked for
        # Runs without any result, by name. The next look must not make them again: a failure that comes by chance would
        # be gone. They are not in the ledger, since the machine's may be over when a tune goes on.
        self._failed: dict[str, dict[str, Any]] = {}
        self._soonest = 0.0  # seconds of a candidate's runs at once, of the fastest so far

    def compare(self, old: TrialSpec, new: TrialSpec, deadline: float, latest: float | None = None) -> Check:
        """`new` against `old` under many seeds each, as long as `deadline` (time.monotonic()) allows.

        Args:
            latest: until when it may go on where it will then have come to a look: most of a proof is worth nothing.
        """
        fewest = LOOKS[0]
        if self._soonest and time.monotonic() + self._seconds_at_least() > max(deadline, latest or 0.0):
            return Check(None, f"there was no time left for {fewest} seeds: not established", late=True)
        inputs = self._runs.same_inputs(old, new)
        if isinstance(inputs, Check):
            return inputs
        to_look = self._seconds_to_a_look(old, fewest)
        ends = latest if latest is not None and time.monotonic() + to_look < latest else deadline
        original = self._original_arm(old, range(1, fewest + 1), ends)
        if len(original) < fewest:
            return Check(None, f"the budget allowed {len(original)} of {fewest} seeds: not established")
        if sum(run.converged for run in original) < 2:
            return Check(None, self._metric.missing())
        registration = self._register(old, new, original)
        candidate: list[ArmRun] = []
        outcome: Outcome | None = None
        pace = self.run_seconds
        for look in registration.looks:
            its, mine = (self._runs.rounds(look - len(arm)) for arm in (original, candidate))
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
            self._soonest = min(self._soonest or pace, pace)
            registration = replace(registration, **self._margin(original))
            outcome = self._judged(old, registration, original, candidate)
            if outcome.equivalent is not None:
                break
        if outcome is None:
            return Check(None, f"the budget allowed {len(candidate)} of {fewest} seeds: not established")
        return Check(
            Contract.STATISTICAL if outcome.equivalent else None,
            outcome.sentence,
            proxy=not registration.whole,
            invariants=inputs,
            statistical=outcome.record(registration, original, candidate),
            left_out={name: reason for run in candidate for name, reason in run.left_out.items()},
        )

    def _judged(
        self, old: TrialSpec, registration: Registration, original: Sequence[ArmRun], candidate: Sequence[ArmRun]
    ) -> Outcome:
        """Where printed numbers speak against it, without those that the original does not print twice alike: they are
        the machine's, a time perhaps."""
        outcome = judge(registration, original, candidate)
        against = any(name.startswith(PRINTED) for name in outcome.against)
        if outcome.equivalent is True or not against:
            return outcome
        first = {run.seed: run for run in original if run.converged}
        if not self._again:
            self._runs.stage(f"proof: {old.name()} once more under {_TWICE} seeds")
            again = lambda seed, threads: self._run_of(replace(old, seed=seed, threads=threads), seed)  # noqa: E731
            self._again = [run for run in self._runs.side_by_side(again, list(first)[:_TWICE]) if run is not None]
        twice = [(first[run.seed], run) for run in self._again if run.converged and run.seed in first]
        if not twice:
            return outcome  # it cannot be told which of them are the machine's: they all count
        left_out = unsteady(original, twice)
        of_both = [[without(run, left_out) for run in arm] for arm in (original, candidate)]
        return judge(registration, of_both[0], of_both[1], len(left_out))

    def screened(self, old: TrialSpec, new: TrialSpec, one: Trace, other: Trace, closer: bool = False) -> Check:
        """A first look at a candidate, by the traces of its duel: same inputs, and a late loss among a few seeds'.

        Args:
            closer: one that lies outside the spread of a few seeds, which may be half as wide as it should be, is
                looked at among more: as many as the proof of the whole plan may need.
        """
        inputs = self._runs.same_inputs(old, new)
        if isinstance(inputs, Check):
            return inputs
        if undecided := too_short_to_look(one, other):
            return undecided
        for count in (_FIRST_LOOK, *LOOKS[:-1]) if closer else (_FIRST_LOOK,):
            runs = self._original_arm(old, range(1, count + 1), time.monotonic() + _FIRST_LOOK_SECONDS)
            check = screened(one, other, [run.losses for run in runs if run.converged])
            if check.level is not None or not check.proxy or len(runs) < count:  # more seeds cannot fix anything else
                break
        return check

    def seconds_needed(self, plain: TrialSpec | None = None, gain: float = 1.0, seeds: int = LOOKS[0]) -> float:
        """An estimate for the proof of a whole plan, to the look at so many seeds.

        Args:
            plain: what it will be compared with, some of whose runs under seeds may be there.
            gain: of the plan over that, which shortens its runs. Half of it is counted on: runs share the cores, each
                with fewer threads than the program had when the gain was measured.
        """
        budget, untimed = self._runs.budget, self._runs.untimed
        each = self.run_seconds or 3.0 * untimed.digests_seconds
        if not self.run_seconds and not self._whole:
            steps = min(self._run_steps, budget.length or self._run_steps)
            each = budget.start + steps * self.step_seconds * self._runs.at_once
        started = min(budget.start, each)
        rounds = self._runs.rounds(len(self._missing(plain, range(1, seeds + 1))) if plain else seeds)
        candidate = self._runs.rounds(seeds) * (started + (each - started) / max(1.0, (1 + gain) / 2))
        return self._runs.seconds_for_inputs() + _SPARE * (rounds * each + candidate)

    def seed_curves(self) -> list[list[float]]:
        """Losses of the original under other seeds, as far as they were run."""
        return [list(run.losses) for run in self._originals.values() if run.losses]

    def _seconds_at_least(self) -> float:
        """Of the proof of a part of a plan, when one of more was made: the original's runs are there.

        With 22 s left a first part of public MNIST's plan had its inputs compared, in 22 s; 27 more were needed.
        """
        return self._runs.seconds_for_inputs() + self._runs.rounds(LOOKS[0]) * self._soonest

    def _seconds_to_a_look(self, old: TrialSpec, seeds: int) -> float:
        """Of the runs of both under so many seeds, without those that were made before, if each takes as long as the
        longest so far.

        Of CIFAR-10 two runs of the original and five of the candidate were missing, 20 s, and 2 min were left of the
        budget: those of the original had to be over by when the proof of the rest and a long confirmation begin.
        """
        missing = self._missing(old, range(1, seeds + 1))
        return (self._runs.rounds(len(missing)) + self._runs.rounds(seeds)) * self.run_seconds

    def _missing(self, spec: TrialSpec, seeds: Sequence[int]) -> list[int]:
        """Those of these seeds under which it was not run before."""
        return [seed for seed in seeds if self._known(spec, seed) is None]

    def _known(self, spec: TrialSpec, seed: int) -> dict[str, Any] | None:
        name = self._run_name(spec, seed)
        return self._failed.get(name) or self._checkpoint.run(name)

    def _steps_of_a_run(self) -> int:
        """As many steps as there is time for; runs at once share the cores. A resumed tune keeps its first answer."""
        most = max(self._runs.steps, _RUN_STEPS)
        step = self._runs.facts.step_seconds * self._runs.at_once
        if not step or self._runs.budget.seconds == math.inf:
            return most
        name = f"steps of a run | {self._metric.name}"
        known = self._checkpoint.registration(name)
        if known is None:
            rounds = 2 * self._runs.rounds(LOOKS[0])  # until both arms have their first look
            each = self._runs.budget.seconds / rounds - self._runs.budget.start
            known = {"steps": max(FEWEST_STEPS, min(most, int(each / step)))}
            self._checkpoint.register(name, known)
        return int(known["steps"])

    def _register(self, old: TrialSpec, new: TrialSpec, original: list[ArmRun]) -> Registration:
        """Written down before the candidate's first run, and kept: a resumed proof finds it there."""
        kind = f"{self._metric.name} | {self._run_steps} | {self._tolerance} | {LOOKS}"
        name = f"{old.name()} | {new.name()} | {kind} | {_LOOKED_AT}"
        known = self._checkpoint.registration(name)
        if known:
            return from_json(Registration, known)
        whole = self._whole or all(len(run.losses) < self._run_steps for run in original)
        looks = LOOKS if self._tolerance is None else _looks_for(self._tolerance, original)
        registration = Registration(
            metric=self._metric.name,
            horizon=0 if whole else self._run_steps,
            whole=whole,
            seeds=tuple(range(1, looks[-1] + 1)),
            looks=looks,
            spent=SPENT,
            worse=int(self._metric.is_loss),
            **self._margin(original),
        )
        self._checkpoint.register(name, to_json(registration))
        said = f"proof: margin ±{registration.margin:.3g} of the {self._metric.name}: {registration.margin_rule}"
        self._runs.stage(said)
        return registration

    def _margin(self, original: Sequence[ArmRun]) -> dict[str, Any]:
        """What the rule gives for as many runs of the original as there are: the candidate has no part in it."""
        margin = margin_from(original, self._tolerance, self._metric.is_loss)
        told = {name: getattr(margin, name) for name in ("spread", "noise", "strict")}
        return {"margin": margin.value, "margin_rule": margin.rule, "margin_runs": margin.runs, **told}

    def _original_arm(self, spec: TrialSpec, seeds: Sequence[int], deadline: float) -> list[ArmRun]:
        runs = self._arm(spec, seeds, deadline)
        self._originals.update((run.seed, run) for run in runs)
        return runs

    def _arm(self, spec: TrialSpec, seeds: Sequence[int], deadline: float) -> list[ArmRun]:
        """One run a seed, some at once, until the deadline; those of an earlier proof are taken as they are."""
        if new := self._missing(spec, seeds):
            self._runs.stage(f"proof: {spec.name()} under {len(new)} seeds")

        def one(seed: int, threads: int) -> ArmRun | None:
            known = self._known(spec, seed)
            if known is not None:
                return from_json(ArmRun, known)
            if time.monotonic() + self.run_seconds > deadline:
                return None
            return self._seeded(replace(spec, seed=seed, threads=threads), seed)

        return [run for run in self._runs.side_by_side(one, seeds) if run is not None]

    def _seeded(self, spec: TrialSpec, seed: int) -> ArmRun | None:
        run = self._run_of(spec, seed)
        name = self._run_name(spec, seed)
        if run is not None and (run.losses or math.isfinite(run.value)):
            self._checkpoint.remember_run(name, to_json(run))
        elif run is not None:
            self._failed[name] = to_json(run)
        return run

    def _run_of(self, spec: TrialSpec, seed: int) -> ArmRun | None:
        """None where there was no time for it; a run that broke off has no result."""
        began = time.monotonic()
        output: list[str] = []
        order = replace(spec, returned=self._metric.function, products=True)
        trace = self._runs.untimed.run(order, self._run_steps, output)
        self.run_seconds = max(self.run_seconds, time.monotonic() - began)
        if isinstance(trace, ExitReason):
            return None if trace.kind == "late" else ArmRun(seed, float("nan"), ())
        losses = tuple(step_losses(trace)[: self._run_steps])  # one that makes many steps in a call may have made more
        text, produced = output[0] if output else "", trace.products
        return ArmRun(
            seed,
            self._metric.value(losses, text, trace.returned),
            losses,
            self._metric.first(text),
            numbers_of(produced, text),
            predictions_of(produced),
            trace.left_out,
        )

    def _run_name(self, spec: TrialSpec, seed: int) -> str:
        return f"{spec.name()} | seed {seed} | {self._metric.name} | {self._run_steps} | {_LOOKED_AT}"


def _looks_for(tolerance: float, original: Sequence[ArmRun]) -> tuple[int, ...]:
    """As many runs as a margin of the user's takes if the arms agree in nothing, up to a limit."""
    values = [run.value for run in original if run.converged]
    needed = runs_needed(tolerance, math.sqrt(2) * statistics.stdev(values))
    return *LOOKS[:-1], max(LOOKS[-1], min(_MOST_LOOK, needed))
