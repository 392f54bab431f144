"""What a search of hyperparameters came to, as plain data: what `--json` writes and reports show."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overdrive.core.interval import Interval
from overdrive.core.json_data import finite, from_json, to_json
from overdrive.core.settings import Value

VERSION = 1
# What a metric may be set against.
PARAMETERS, MEMORY, STEP, TIME = "parameters", "memory", "step", "time"
COSTS = (PARAMETERS, MEMORY, STEP, TIME)
GAINED = ("better", "cheaper")  # verdicts
RUNNING = "running"  # the verdict of a search that is not over yet


@dataclass(frozen=True)
class Varied:
    """A parameter of the search."""

    name: str
    default: Value
    place: str  # where it is set, for people
    effect: str  # what it moves
    domain: str


@dataclass(frozen=True)
class Tried:
    """One configuration's run.

    Attributes:
        state: complete, pruned, failed (the script did not come to its end) or diverged (no finite metric).
        metric: at the run's end, or where it was pruned.
        seconds: of the whole process.
        progress: samples that were trained on; steps where no loader tells.
        steps: of the training that were seen.
        reached: seconds to the target, where there is one and it was reached.
        seen: seconds, and the metric that was printed by then, each time that it was another one; in runs of the
            comparison.
        cost: of what the metric is set against, if it is: trained parameters, bytes of memory at most, seconds of a
            step or of the run.
        outside: parameters by whose values it lies outside of what the speed plan was proved for.
        without: techniques of the plan that left themselves out.
        start: seconds to the first step; 0 where that is not known.
        losses: marks of its training's losses, a hash each of the first 1, 2, 4, ...; in runs of the comparison.
        printed: likewise of the values of the metric that it printed.
    """

    number: int
    values: Mapping[str, Value]
    state: str
    metric: float | None
    seconds: float
    progress: float = 0.0
    reached: float | None = None
    why: str = ""
    steps: int = 0
    seen: tuple[tuple[float, float], ...] = ()
    cost: float | None = None
    outside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    start: float = 0.0
    losses: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()

    @property
    def pace(self) -> float:
        """Seconds a step, with what the program does in between; of the whole run where the start is not known."""
        return (self.seconds - self.start) / max(1, self.steps - 1)

    def metric_by(self, seconds: float) -> float | None:
        """What was printed last by then; None where nothing was, or its times are not known."""
        return next((metric for at, metric in reversed(self.seen) if at <= seconds), None)


def marks_of(values: Sequence[float]) -> tuple[str, ...]:
    """By which two runs are compared that were not ended at the same place."""
    digest, marks = hashlib.sha256(), []
    for count, value in enumerate(values, start=1):
        digest.update(struct.pack("<d", value))
        if not count & (count - 1):
            marks.append(digest.hexdigest()[:16])
    return tuple(marks)


def are_alike(runs: Sequence[Tried], cut: bool) -> bool:
    """Whether runs of one configuration came the same way, whatever their seeds.

    An accuracy of a hundred samples may well be the same at the end of two runs that trained differently; and what is
    read of a run while it goes on depends on when.

    Args:
        cut: they were ended on the way, by time or at a target: their metrics are of different places.
    """
    first, *others = runs
    told = all(each.losses or each.printed for each in runs)
    return all(
        ((cut and told) or each.metric == first.metric)
        and all(map(operator.eq, each.losses, first.losses))
        and all(map(operator.eq, each.printed, first.printed))
        for each in others
    )


@dataclass(frozen=True)
class SeedComparison:
    """The chosen configuration against the defaults, on seeds that the search has not seen.

    Attributes:
        gain: mean of the pairs' differences with its interval (95 %), above 0 where the chosen one is better: in the
            metric's unit, in seconds where the goal is a target.
        apparent: the gain that the search itself showed, of which the rest was selection.
        equal: the gain at equal wall clock, where the chosen one takes longer and prints its metric on the way: the
            metric of each of its runs when the default run of its pair was over.
        cost: of what the metric is set against, as a multiple of the defaults'.
    """

    seeds: tuple[int, ...]
    defaults: tuple[Tried, ...]
    chosen: tuple[Tried, ...]
    gain: Interval
    apparent: float
    equal: Interval | None = None
    cost: Interval | None = None


@dataclass(frozen=True)
class SearchResult:
    """
    Attributes:
        verdict: better, no better, not established; cheaper, where the metric is set against a cost which is less, and
            the metric is not established to be worse; running, where it is not over yet.
        chosen: the configuration that was best in the search; empty where that was the defaults.
        command: how the program is run with it.
        edits: what of it no option sets, with the place.
        judge: the metric of the comparison, where it is another one, of data that the selection did not see.
        against: what the metric is set against, one of COSTS; nothing where it is not.
        tree: how the modules of the model differ with what was chosen, as lines of a diff.
        tune: the command that finds and proves a plan for what was chosen, where the plan was not proved for it.
        run: the command that runs what was chosen under a plan file that was written for it, where the plan's proof
            covers it.
        within: seconds of each run after which its metric counts; 0: at its end.
    """

    program: str
    metric: str
    maximize: bool
    target: float | None
    budget: float  # seconds
    spent: float
    parameters: tuple[Varied, ...]
    defaults: Tried
    trials: tuple[Tried, ...]
    verdict: str
    chosen: Mapping[str, Value] = field(default_factory=dict)
    comparison: SeedComparison | None = None
    command: str = ""
    edits: tuple[str, ...] = ()
    importances: Mapping[str, float] = field(default_factory=dict)
    plan: str = ""
    notes: tuple[str, ...] = ()
    judge: str = ""
    within: float = 0.0
    against: str = ""
    tune: str = ""
    run: str = ""
    tree: tuple[str, ...] = ()
    version: int = VERSION

    @classmethod
    def loads(cls, data: Any) -> SearchResult:
        """What `dumps` wrote, as it is read from JSON.

        Raises:
            ValueError, TypeError, LookupError: it is something else.
        """
        found = from_json(cls, data)
        if found.comparison is None:
            return found
        equal, cost = found.comparison.equal, found.comparison.cost
        both = replace(
            found.comparison,
            gain=_whole(found.comparison.gain),
            equal=equal and _whole(equal),
            cost=cost and _whole(cost),
        )
        return replace(found, comparison=both)

    def dumps(self) -> str:
        """As JSON; numbers that are none, such as the ends of an endless interval, are null."""
        return json.dumps(finite(to_json(self)), indent=1, allow_nan=False) + "\n"


def _whole(read: Interval) -> Interval:
    """Endless where an end was null."""
    low, estimate, high = read.low, read.estimate, read.high
    return Interval(
        -math.inf if low is None else low,
        math.nan if estimate is None else estimate,
        math.inf if high is None else high,
    )
