"""What a search is to reach: the best metric, or a metric as soon as possible."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from overdrive.core.metric import Metric
from overdrive.core.search_result import Tried

_SMALLER = re.compile(
    r"(?i)loss|err|perplexity|\bppl\b|mse|mae|rmse|nll|bpc|bpb|\bwer\b|\bcer\b|\bfid\b|entropy|\bkld?\b|cost|regret"
)
_SOONEST = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*%?\s+soonest\s*")


class GoalError(ValueError):
    """The message is one sentence for people."""


@dataclass(frozen=True)
class Goal:
    """
    Attributes:
        maximize: whether more of the metric is better.
        target: the metric that is to be reached as soon as possible; None: the best metric counts.
    """

    maximize: bool
    target: float | None = None

    @classmethod
    def parse(cls, text: str, metric: Metric, direction: str = "") -> Goal:
        """`best`, or `97 soonest`.

        Args:
            direction: "maximize" or "minimize"; by the metric's name where it is not given.

        Raises:
            GoalError: it is neither.
        """
        maximize = direction == "maximize" if direction else not _SMALLER.search(metric.name)
        if text.strip() == "best":
            return cls(maximize)
        if match := _SOONEST.fullmatch(text):
            return cls(maximize, float(match[1]))
        raise GoalError(f"{text!r} is no goal; write 'best' or, for a metric that is to be reached, '97 soonest'")

    def signed(self, value: float) -> float:
        """The metric so that less is better."""
        return -value if self.maximize else value

    def met(self, value: float) -> bool:
        return self.target is not None and self.signed(value) <= self.signed(self.target)

    def score(self, run: Tried, patience: float) -> float | None:
        """Less is better; None where there is none: the run failed.

        Args:
            patience: seconds that one which never reached the target counts with at least. The farther it stayed away,
                the more.
        """
        if run.state in ("failed", "pruned"):
            return None
        if run.metric is None:
            return math.inf
        if self.target is None:
            return self.signed(run.metric)
        if run.reached is not None:
            return run.reached
        missing = abs(run.metric - self.target) / max(abs(self.target), 1e-12)
        return max(patience, run.seconds) * (1 + missing)
