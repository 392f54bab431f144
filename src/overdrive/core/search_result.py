"""What a search of hyperparameters came to, as plain data: what `--json` writes and reports show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from overdrive.core.interval import Interval
from overdrive.core.json_data import finite, from_json, to_json
from overdrive.core.settings import Value

VERSION = 1
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


@dataclass(frozen=True)
class SeedComparison:
    """The chosen configuration against the defaults, on seeds that the search has not seen.

    Attributes:
        gain: mean of the pairs' differences with its interval (95 %), above 0 where the chosen one is better: in the
            metric's unit, in seconds where the goal is a target.
        apparent: the gain that the search itself showed, of which the rest was selection.
    """

    seeds: tuple[int, ...]
    defaults: tuple[Tried, ...]
    chosen: tuple[Tried, ...]
    gain: Interval
    apparent: float


@dataclass(frozen=True)
class SearchResult:
    """
    Attributes:
        verdict: better, no better, not established; running, where it is not over yet.
        chosen: the configuration that was best in the search; empty where that was the defaults.
        command: how the program is run with it.
        edits: what of it no option sets, with the place.
        judge: the metric of the comparison, where it is another one, of data that the selection did not see.
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
    version: int = VERSION

    @classmethod
    def loads(cls, data: Any) -> SearchResult:
        """What `dumps` wrote, as it is read from JSON.

        Raises:
            ValueError, TypeError, LookupError: it is something else.
        """
        found = from_json(cls, data)
        gain = found.comparison and found.comparison.gain
        if found.comparison and gain and None in (gain.low, gain.estimate, gain.high):
            endless = Interval(-math.inf, math.nan, math.inf)
            return replace(found, comparison=replace(found.comparison, gain=endless))
        return found

    def dumps(self) -> str:
        """As JSON; numbers that are none, such as the ends of an endless interval, are null."""
        return json.dumps(finite(to_json(self)), indent=1, allow_nan=False) + "\n"
