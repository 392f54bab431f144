"""Proves, in trials that nobody times, at which level a plan is still the same program.

`exact`: diaries of both, every step hashed. `rounding`: teacher-forced steps against fp64. `statistical`: runs
under many seeds of both, judged with a margin that is written down before the candidate's first run. The
comparing itself is `evidence`; the trials are `trials`; here is what is run, in which order, and what is kept.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from overdrive.contract import Contract
from overdrive.evidence import rounding
from overdrive.evidence.equivalence import Check, compared, first_difference, judged_exact, screened, step_losses
from overdrive.evidence.statistical import Outcome, Registration, Run, judge, margin_from
from overdrive.facts import Facts
from overdrive.machine.cpu import granted_cores
from overdrive.metric import Metric
from overdrive.resume import Memory
from overdrive.trials.host import House, Trial
from overdrive.trials.order import Ending, Order, Part, Trace, TrialOver

FEWEST_STEPS = 100  # that a proof covers, where the program makes so many
_MOST_STEPS = 400
_RUN_STEPS = 300
_ALL = 1_000_000_000
_PAST_THE_EPOCH = 20  # steps into the second epoch, where a cache that froze chance shows
_STATES = 16
_SECONDS = 15.0  # that the steps of one run may take, beyond FEWEST_STEPS
_LOOKS = (10, 16)  # runs an arm: power 0.79 and 0.97 at a margin of 1.5 standard deviations (evidence/statistical.py)
_FIRST_LOOK, _FIRST_LOOK_SECONDS = 3, 120.0
_OTHER_SEEDS = 1000  # the candidate's seeds are the original's and this: other seeds
# Runs under seeds share the cores of a CPU, each with its share of threads, both arms alike: starting is most of
# a short run, and is done by one core. Programs of more parameters than this run alone, for the memory's sake.
_AT_ONCE = 4
_SMALL = 20_000_000
_TAIL = 10  # the metric is the mean loss of the last tenth


class Prover:
    """All proofs of one tune or verification. What the original did is run once and kept."""

    def __init__(
        self,
        house: House,
        memory: Memory,
        facts: Facts,
        stage: Callable[[str], None] = lambda text: None,
        metric: Metric | None = None,
        whole: bool = False,
    ) -> None:
        self.metric = metric or Metric()
        self.steps = _ALL if whole else horizon(facts)  # of diaries and teacher-forced steps
        self._whole = whole or not self.metric.is_loss  # a metric is printed at the end, as a rule
        self._run_steps = _ALL if self._whole else max(self.steps, _RUN_STEPS)  # of runs under seeds
        self._house = house
        self._memory = memory
        self._facts = facts
        self._stage = stage
        self._traces: dict[str, Trace | Ending] = {}
        self._folder: Path | None = None
        self._taught: Mapping[str, Any] = {}
        self._careful = ""  # why the reference is not in fp64
        self._originals: dict[int, Run] = {}
        self.run_seconds = 0.0  # of the longest run under a seed so far
        self.trial_seconds = 5.0  # ... and of the longest other trial

    # -- exact ----------------------------------------------------------------------------------

    def repeats(self, plain: Order) -> Check:
        """The program against itself, bit for bit; where they differ, with what differs and who is to blame."""
        first, second = self._diary(plain, "bits"), self._diary(plain, "bits", again=True)
        if isinstance(first, Ending) or isinstance(second, Ending):
            return Check(None, f"it could not be run twice ({first if isinstance(first, Ending) else second})")
        difference = first_difference(first, second)
        if difference is None:
            return Check(Contract.EXACT, f"two runs of the untouched program are the same in {first.steps} steps")
        return Check(None, f"two runs of the untouched program differ: {difference}{self._blame(plain)}")

    def _blame(self, plain: Order) -> str:
        """The operation that PyTorch's deterministic mode refuses, as the end of a sentence."""
        trial = self._run(replace(plain, deterministic=True), min(self.steps, FEWEST_STEPS))
        if isinstance(trial, Ending) and "deterministic" in trial.detail:
            operation = trial.detail.removeprefix("RuntimeError: ").split(" does not have")[0]
            return f"; {operation} has no deterministic implementation"
        return ""

    def exact(self, old: Order, new: Order) -> Check:
        """`new` against `old`, which is the program itself or was proved to be the same bit for bit."""
        self._stage("proof: every step hashed")
        one, other = self._diary(old, "bits"), self._diary(new, "bits")
        if isinstance(one, Ending) or isinstance(other, Ending):
            return Check(None, f"its proof broke off ({other if isinstance(other, Ending) else one})")
        return judged_exact(one, other)

    # -- rounding -------------------------------------------------------------------------------

    def rounding(self, plain: Order, old: Order, new: Order) -> Check:
        """`new` against `old`, in steps from states that a teacher saved along the run of `plain`."""
        self._stage("proof: teacher-forced steps against fp64")
        refusal = self._teach(plain)
        if refusal:
            return Check(None, refusal)
        one, other = self._pupil(old), self._pupil(new)
        if isinstance(one, Ending) or isinstance(other, Ending):
            return Check(None, f"its proof broke off ({other if isinstance(other, Ending) else one})")
        told = compared(one, other, Contract.ROUNDING, self._nudged(plain))
        wrong = next((each for each in told if not each.same), None)
        if wrong:
            return Check(None, wrong.told, invariants=told)
        result = rounding.judge(
            rounding.rows_of(one.lesson), rounding.rows_of(other.lesson), careful=bool(self._careful)
        )
        evidence = {"rounding": {**result.evidence, "flag": self._careful or None}}
        return Check(Contract.ROUNDING if result.holds else None, result.sentence, invariants=told, evidence=evidence)

    def _teach(self, plain: Order) -> str | None:
        """Run the teacher once; returns why it is impossible, or None."""
        if self._folder is not None:
            return None if self._taught else "no state of the program could be saved"
        self._folder = Path(tempfile.mkdtemp(prefix="lesson-", dir=self._house.scratch))
        for role in ("teacher", "careful teacher"):
            reason = self._teach_as(role, plain)
            if reason is None:
                return None
            self._careful = reason
            self._forget_lesson()
        self._taught = {}
        return f"its steps cannot be repeated from saved states ({self._careful})"

    def _teach_as(self, role: str, plain: Order) -> str | None:
        """Why this teacher is of no use, or None."""
        chosen = lesson_steps(min(self.steps, _MOST_STEPS))
        trace = self._lecture(role, plain, chosen)
        if isinstance(trace, Trace) and trace.steps < chosen[-1] and len(trace.lesson["states"]) < _STATES:
            self._forget_lesson()  # a short program: other steps
            trace = self._lecture(role, plain, lesson_steps(trace.steps))
        if isinstance(trace, Ending):
            return str(trace)
        self._taught = trace.lesson
        if not self._taught["states"]:
            return "it saved no state"
        pupil = self._pupil(plain)
        if isinstance(pupil, Ending):
            return str(pupil)
        return rounding.usable(rounding.rows_of(pupil.lesson)) if role == "teacher" else None

    def _lecture(self, role: str, plain: Order, chosen: tuple[int, ...]) -> Trace | Ending:
        return self._run(replace(plain, part=Part(role, str(self._folder), chosen)), chosen[-1])

    def _forget_lesson(self) -> None:
        assert self._folder is not None
        for path in self._folder.iterdir():
            path.unlink()
        self._traces = {name: trace for name, trace in self._traces.items() if "pupil" not in name}

    def _pupil(self, order: Order) -> Trace | Ending:
        assert self._folder is not None
        steps = tuple(self._taught["states"])
        pupil = replace(order, part=Part("pupil", str(self._folder), steps), diary="inputs")
        return self._known(f"pupil {order.name()}", lambda: self._run(pupil, steps[-1]))

    # -- statistical ----------------------------------------------------------------------------

    def statistical(self, old: Order, new: Order, deadline: float, tolerance: float | None = None) -> Check:
        """`new` against `old` under many seeds each, as long as `deadline` (time.monotonic()) allows."""
        told = self._same_inputs(old, new)
        if isinstance(told, Check):
            return told
        looks = _LOOKS
        original = self._arm(old, range(1, looks[0] + 1), deadline)
        if len(original) < looks[0]:
            return Check(None, f"the budget allowed {len(original)} of {looks[0]} seeds: not established")
        if sum(run.converged for run in original) < 2:
            return Check(None, self.metric.missing())
        registration = self._register(old, new, original, looks, tolerance)
        candidate: list[Run] = []
        outcome: Outcome | None = None
        for look in looks:
            seeds = range(1, look + 1)
            original = self._arm(old, seeds, deadline)
            candidate = self._arm(new, [seed + _OTHER_SEEDS for seed in seeds], deadline)
            if len(candidate) < look or len(original) < look:
                break
            outcome = judge(registration, original, candidate)
            if outcome.equivalent is not None:
                break
        if outcome is None:
            return Check(None, f"the budget allowed {len(candidate)} of {looks[0]} seeds: not established")
        evidence = {
            **outcome.to_dict(),
            **registration.to_dict(),
            "original": [_finite(run.value) for run in original],
            "candidate": [_finite(run.value) for run in candidate],
            "seeds": {
                "original": [run.seed for run in original],
                "candidate": [run.seed for run in candidate],
            },
        }
        return Check(
            Contract.STATISTICAL if outcome.equivalent else None,
            outcome.sentence,
            proxy=not registration.whole,
            invariants=told,
            evidence={"statistical": evidence},
        )

    def screened(self, old: Order, new: Order, one: Trace, other: Trace) -> Check:
        """A first look at a candidate, by the traces of its duel: same inputs, and a late loss among a few seeds'."""
        told = self._same_inputs(old, new)
        if isinstance(told, Check):
            return told
        runs = self._arm(old, range(1, _FIRST_LOOK + 1), time.monotonic() + _FIRST_LOOK_SECONDS)
        return screened(one, other, [run.losses for run in runs if run.converged])

    def seconds_needed(self, level: Contract) -> float:
        """An estimate for the proof of a whole plan at this level."""
        if level is not Contract.STATISTICAL:
            return 3.0 * self.trial_seconds
        rounds = -(-2 * _LOOKS[0] // self._at_once())
        return rounds * (self.run_seconds or 3.0 * self.trial_seconds)

    def seed_curves(self) -> list[list[float]]:
        """Losses of the original under other seeds, as far as they were run."""
        return [list(run.losses) for run in self._originals.values() if run.losses]

    def _same_inputs(self, old: Order, new: Order) -> tuple[Any, ...] | Check:
        self._stage("proof: same samples, steps and learning rates")
        one, other = self._diary(old, "inputs"), self._diary(new, "inputs")
        if isinstance(one, Ending) or isinstance(other, Ending):
            return Check(None, f"its proof broke off ({other if isinstance(other, Ending) else one})")
        told = compared(one, other, Contract.STATISTICAL, self._nudged(old))
        wrong = next((each for each in told if not each.same), None)
        return Check(None, wrong.told, invariants=told) if wrong else told

    def _register(
        self, old: Order, new: Order, original: list[Run], looks: tuple[int, ...], tolerance: float | None
    ) -> Registration:
        """Written down before the candidate's first run, and never changed: a resumed proof finds it there."""
        name = f"{old.name()} | {new.name()} | {self.metric.name} | {self._run_steps} | {tolerance}"
        known = self._memory.registration(name)
        if known:
            return Registration.from_dict(known)
        margin, rule = margin_from(original, tolerance)
        whole = self._whole or all(len(run.losses) < self._run_steps for run in original)
        registration = Registration(
            metric=self.metric.name,
            horizon=0 if whole else self._run_steps,
            whole=whole,
            seeds=tuple(range(1, looks[-1] + 1)),
            looks=looks,
            margin=margin,
            margin_rule=rule,
        )
        self._memory.register(name, registration.to_dict())
        return registration

    def _arm(self, order: Order, seeds: Sequence[int], deadline: float) -> list[Run]:
        """One run a seed, some at once, until the deadline; those of an earlier proof are taken as they are."""
        at_once = self._at_once()
        threads = granted_cores() // at_once if at_once > 1 else 0
        new = [seed for seed in seeds if self._memory.run(self._run_name(order, seed)) is None]
        if new:
            self._stage(f"proof: {order.name()} under {len(new)} seeds")

        def one(seed: int) -> Run | None:
            known = self._memory.run(self._run_name(order, seed))
            if known is not None:
                return Run(**{**known, "losses": tuple(known["losses"])})
            if time.monotonic() + self.run_seconds > deadline:
                return None
            return self._seeded(replace(order, seed=seed, threads=threads, returned=self.metric.function), seed)

        with ThreadPoolExecutor(at_once) as pool:
            runs = [run for run in pool.map(one, seeds) if run is not None]
        self._originals.update((run.seed, run) for run in runs if run.seed < _OTHER_SEEDS)
        return runs

    def _at_once(self) -> int:
        small = self._facts.device == "cpu" and self._facts.parameters < _SMALL
        return min(granted_cores(), _AT_ONCE) if small else 1

    def _seeded(self, order: Order, seed: int) -> Run | None:
        began = time.monotonic()
        output: list[str] = []
        trace = self._run(order, self._run_steps, output)
        self.run_seconds = max(self.run_seconds, time.monotonic() - began)
        if isinstance(trace, Ending):
            return Run(seed, float("nan"), ())
        losses = tuple(step_losses(trace))
        run = Run(seed, self.metric.value(losses, output[0] if output else "", trace.returned), losses)
        self._memory.remember_run(self._run_name(order, seed), asdict(run))
        return run

    def _run_name(self, order: Order, seed: int) -> str:
        return f"{order.name()} | seed {seed} | {self.metric.name} | {self._run_steps}"

    # -- trials ---------------------------------------------------------------------------------

    def _diary(self, order: Order, kind: str, again: bool = False) -> Trace | Ending:
        name = f"{kind} {order.name()}{' again' if again else ''}"
        return self._known(name, lambda: self._run(replace(order, diary=kind), self.steps))

    def _nudged(self, order: Order) -> Trace | None:
        """Shows what the model is given that it has not made itself."""
        trace = self._diary(order, "nudged")
        return None if isinstance(trace, Ending) else trace

    def _known(self, name: str, run: Callable[[], Trace | Ending]) -> Trace | Ending:
        if name not in self._traces:
            self._traces[name] = run()
        return self._traces[name]

    def _run(self, order: Order, steps: int, output: list[str] | None = None) -> Trace | Ending:
        """The program's first `steps` steps, or all of it where it makes fewer."""
        began = time.monotonic()
        trial = Trial(self._house, order)
        try:
            trial.first_step()
            while trial.step < steps:
                trial.run(min(_MOST_STEPS, steps - trial.step))
            return trial.trace()
        except TrialOver as over:
            if over.ending.kind == "ended" and over.report.get("steps"):
                return Trace.from_report(over.report)
            return over.ending
        finally:
            if output is not None:
                output.append(trial.output_tail(1 << 20))
            trial.stop()
            if not order.seed:
                self.trial_seconds = max(self.trial_seconds, time.monotonic() - began)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def horizon(facts: Facts) -> int:
    """Steps that a proof covers: some of the second epoch, where that is within reach."""
    epochs = [-(-loader.length // loader.batch_size) for loader in facts.loaders if loader.length and loader.batch_size]
    wanted = max(epochs, default=0) + _PAST_THE_EPOCH
    affordable = int(_SECONDS / facts.step_seconds) if facts.step_seconds else _MOST_STEPS
    return max(FEWEST_STEPS, min(wanted, affordable, _MOST_STEPS))


def lesson_steps(last: int) -> tuple[int, ...]:
    """The first four steps, ever fewer until the last sixteen: those in a row, for what happens now and then."""
    if last <= 2 * _STATES:
        return tuple(range(1, last + 1))
    first, spaced = 4, last - _STATES  # the last of those that are spaced
    chosen = list(range(1, first + 1))
    for place in range(1, _STATES - first + 1):
        wanted = round(first * (spaced / first) ** (place / (_STATES - first)))
        chosen.append(max(wanted, chosen[-1] + 1))
    return (*chosen, *range(spaced + 1, last + 1))
