"""One run of a program under a configuration, in a trial: its metric at the end, and on the way."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from overdrive.core.contract import Contract
from overdrive.core.hyperparameters import Hyperparameters, Seen
from overdrive.core.json_data import from_json
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.core.records import Block, Trace, TrialOver
from overdrive.core.search_result import MEMORY, PARAMETERS, STEP, TIME, Tried, marks_of
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import step_losses
from overdrive.search import names
from overdrive.search.goal import Goal
from overdrive.search.listing import REPORT, ParameterList
from overdrive.search.parameters import Values, set_in
from overdrive.search.plan_cover import outside
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

UNITS = 27  # in which a run's progress is counted: three rungs of thirds
_CHUNK_SECONDS = 1.0  # between two looks at what was printed
_MOST_OUTPUT = 1 << 22  # bytes of it that are looked through
_MOST_SEEN = 200  # values of the metric that a run of the comparison keeps
# Unbuffered: what a program prints is to be seen when it prints it.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}

# Told of a run's progress in units and its metric so far, less being better; true where the run is to end here.
OnProgress = Callable[[int, float], bool]


@dataclass
class Runs:
    """
    Attributes:
        total: the default run's progress (samples; steps where no loader tells); 0: not known yet.
        steps: the default run's; 0: not known yet.
        length: the default run's seconds, by which progress is counted where the goal has a time; 0: not known yet.
        techniques: of the program's speed plan.
        loosest: of their contracts.
    """

    pool: TrialPool
    program: Program
    found: ParameterList
    metric: Metric
    goal: Goal
    techniques: tuple[Chosen, ...] = ()
    loosest: Contract | None = None
    total: float = 0.0
    steps: int = 0
    length: float = 0.0
    output: str = field(default="", init=False)  # of the last run

    def run(self, values: Values, seed: int, seconds: float, watch: OnProgress | None = None) -> Tried:
        """The whole program, or as far as `watch` lets it go; it fails where it takes longer than `seconds`.

        With a target it is over as that is reached, once the default run has told how long the program is; one that
        is watched has not failed after `seconds`, but is ended early. Where the goal is the best after a time, it is
        over then.
        """
        program, keys = set_in(self.program, self.found.parameters, values)
        wanted = Hyperparameters(keys, losses=self.metric.is_loss, anneal=self.annealing(values))
        spec = TrialSpec(
            program,
            self.techniques,
            seed,
            returned=self.metric.function,
            environment=_ENVIRONMENT,
            hyperparameters=wanted,
        )
        # A program that makes no step is silent to its end, and one that samples, tests or plays for long meanwhile.
        self.pool.first_patience = self.pool.patience = seconds
        trial = Trial(self.pool, spec, self.launcher())
        made = _RunUnderWay(self, trial, self._batches(values), seconds, watch).to_its_end(values)
        without = tuple(name for name, _ in self.techniques if name in trial.left_out)
        return replace(made, outside=outside(self.found.parameters, values, self.loosest), without=without)

    def annealing(self, values: Values) -> int:
        """Steps over which the learning rates fall: the samples that the default run sees in its share; 0: none."""
        falls = (each.name for each in self.found.parameters if each.meaning == names.ANNEAL)
        share = sum(float(values.get(name, 0.0)) for name in falls)
        return math.ceil(share * self.steps / self._batches(values))

    def launcher(self) -> Launcher | None:
        """Forked from a process that has imported PyTorch, where nobody asks how long a run takes."""
        facts = self.found.facts
        return self.pool.untimed_launcher(facts) if facts and not self.goal.measured else None

    def _batches(self, values: Values) -> float:
        """How many times the program's own samples a step sees, where no loader tells."""
        for parameter in self.found.parameters:
            default, value = parameter.default, values.get(parameter.name)
            if parameter.meaning != names.BATCH_SIZE or isinstance(default, str) or default <= 0:
                continue
            if isinstance(value, (int, float)):
                return value / default
        return 1.0


class _RunUnderWay:
    def __init__(self, runs: Runs, trial: Trial, batches: float, seconds: float, watch: OnProgress | None) -> None:
        self._runs, self._trial, self._batches, self._watch = runs, trial, batches, watch
        self._began = time.monotonic()
        self._seconds = min(seconds, runs.goal.within or seconds)
        self._until = self._began + self._seconds
        self._progress = 0.0
        self._steps = 0
        self._unit = 0
        self._metric = math.nan
        self._reached: float | None = None
        self._seen: list[tuple[float, float]] = []  # seconds and metric, as it changed
        self._paces: list[float] = []  # seconds a step
        self._start = 0.0  # seconds to the first one
        self._memory = self._parameters = 0  # bytes at most; trained
        self._losses: tuple[str, ...] = ()
        self._printed: tuple[str, ...] = ()

    def to_its_end(self, values: Values) -> Tried:
        state, why = "", ""
        try:
            first = self._trial.first_step(self._until)
            self._start = time.monotonic() - self._began
            self._advance(first)
            if self._runs.goal.against == PARAMETERS:
                self._parameters = self._trial.facts().parameters
            while not (state := self._look()):
                if time.monotonic() > self._until:
                    state, why = self._late()
                    break
                self._advance(self._trial.run(self._chunk(), until=self._cut()))
            if self._reached is not None:
                self._mark(self._trial.trace())
        except TrialOver as over:
            state, why = self._ended(over)
        finally:
            self._runs.output = self._trial.output_tail(_MOST_OUTPUT)
            self._trial.stop()
        if why == "" and (reason := self._trial.left_out.get(REPORT)):
            state, why = "failed", f"its values could not be set: {reason}"
        metric = self._metric if math.isfinite(self._metric) else None
        if state == "complete" and metric is None:
            state = "diverged"
        seconds = time.monotonic() - self._began
        return Tried(
            0,
            dict(values),
            state,
            metric,
            seconds,
            self._progress,
            self._reached,
            why,
            self._steps,
            tuple(self._seen),
            self._cost(seconds),
            start=self._start,
            losses=self._losses,
            printed=self._printed,
        )

    def _cost(self, seconds: float) -> float | None:
        """Of what the metric is set against; None where the run showed none."""
        steps = statistics.median(self._paces) if self._paces else 0.0
        found = {PARAMETERS: self._parameters, MEMORY: self._memory, STEP: steps, TIME: seconds}
        return float(found.get(self._runs.goal.against, 0)) or None

    def _cut(self) -> float:
        """When a call for steps is broken off: what was printed up to there counts. Others are asked between two."""
        metric = self._runs.metric
        printed = not metric.is_loss and not metric.function
        return self._until if self._seconds == self._runs.goal.within and printed else math.inf

    def _late(self, at_rest: bool = True) -> tuple[str, str]:
        """`at_rest`: whether it can be asked for what it has made."""
        if self._seconds == self._runs.goal.within and self._steps:
            self._count(self._trial.trace() if at_rest else None)
            return "complete", ""
        if self._watch and self._runs.goal.target is not None:
            return "pruned", ""
        return "failed", f"it took longer than {time.monotonic() - self._began:.0f} s"

    def _advance(self, block: Block) -> None:
        self._steps += block.steps
        self._progress += block.samples or block.steps * self._batches
        self._last = block
        self._memory = max(self._memory, block.peak_memory)
        if block.steps < self._steps:  # the first one's time is the start's
            self._paces.append(block.seconds / block.steps)

    def _chunk(self) -> int:
        block = self._last
        timed = self._runs.goal.target is not None and not self._runs.metric.is_loss  # a loss is a mean of what it sees
        seconds = _CHUNK_SECONDS / 4 if timed else _CHUNK_SECONDS
        steps = max(1, round(seconds * block.steps / max(block.seconds, 1e-6))) if self._steps > 1 else 1
        if self._runs.total and self._watch and not self._runs.length:  # as far as the next unit
            left = (self._unit + 1) * self._runs.total / UNITS - self._progress
            steps = min(steps, max(1, math.ceil(left * self._steps / self._progress)))
        return min(steps, 2 * self._steps)

    def _look(self) -> str:
        """The run's state, where it is to end here; nothing where it goes on."""
        metric = self._runs.metric
        if metric.is_loss:
            seen = from_json(Seen, self._trial.observed().get(REPORT, {}))
            self._metric = math.nan if seen.loss is None else seen.loss
        elif not metric.function:
            self._metric = metric.value((), self._trial.output_tail(_MOST_OUTPUT), None)
        self._note()
        if self._runs.total and self._reached is not None:
            return "complete"
        unit = int(UNITS * self._done())
        if not self._watch or unit <= self._unit or not math.isfinite(self._metric):
            return ""
        self._unit = unit
        return "pruned" if unit < UNITS and self._watch(unit, self._runs.goal.signed(self._metric)) else ""

    def _done(self) -> float:
        """How much of what the default run takes: of its samples, or of its seconds where these are what counts.

        A larger batch that is behind at equal samples may be ahead at equal time.
        """
        if self._runs.length:
            return (time.monotonic() - self._began) / self._runs.length
        return self._progress / self._runs.total if self._runs.total else 0.0

    def _note(self) -> None:
        now = time.monotonic() - self._began
        if self._reached is None and self._runs.goal.met(self._metric):
            self._reached = now
        known = self._seen[-1][1] if self._seen else math.nan
        if self._watch or self._runs.metric.is_loss or not math.isfinite(self._metric) or self._metric == known:
            return
        if len(self._seen) >= _MOST_SEEN:
            del self._seen[:-1:2]
        self._seen.append((round(now, 2), self._metric))

    def _ended(self, over: TrialOver) -> tuple[str, str]:
        if over.exit_reason.kind == "late":
            return self._late(at_rest=False)
        if over.exit_reason.kind != "ended":
            return "failed", str(over.exit_reason)
        self._count(over.trace)
        return "complete", ""

    def _count(self, trace: Trace | None) -> None:
        """What it came to, from its trace and all that it printed."""
        if trace:
            self._steps = trace.steps
            self._progress = trace.samples or trace.steps * self._batches
        losses = step_losses(trace) if trace else []
        output = self._trial.output_tail(_MOST_OUTPUT)
        self._metric = self._runs.metric.value(losses, output, trace.returned if trace else None)
        self._note()
        self._mark(trace)

    def _mark(self, trace: Trace | None) -> None:
        """What tells it from runs under other seeds: all that was computed and printed, whoever looked when."""
        if self._watch:
            return
        self._losses = marks_of(step_losses(trace) if trace else [])
        self._printed = marks_of(self._runs.metric.printed(self._trial.output_tail(_MOST_OUTPUT)))
