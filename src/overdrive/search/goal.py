"""What a search is to reach: the best metric, the best after a time, or a metric as soon as possible."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from overdrive.core.metric import Metric
from overdrive.core.search_result import MEMORY, STEP, TIME, Tried

# Of a metric's name, less of which is better; short ones are words of their own: `eval_wer`, but no `lower`.
_SMALLER = re.compile(
    r"(?i)loss|perplexity|entropy|mse|mae|nll|bpc|bpb|cost|regret|divergence|brier|chamfer|wasserstein|deviance"
    r"|neg(?:ative)?[ _-]*(?:log[ _-]*)?(?:likelihood|prob|elbo)"
    r"|(?<![a-z])(?:err(?:or)?s?|ppl|[wcedt]er|[fk]id|fvd|ece|epe|kld?|s?mape|lpips|bpd|bits(?=\W*(?:/|per)))(?![a-z])"
)
# As scikit-learn names its scores: `neg_mean_squared_error`, `neg_log_loss`.
_NEGATED = re.compile(r"(?i)(?<![a-z])neg(?:ative)?[ _-](?:mean|root|median|max|log[ _-]loss|brier)")
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # where a word begins in `valError`
_NUMBERS = re.compile(r"\[[^\]]*\][+*?]*|\\[A-Za-z][+*?]*|\.[+*?]+")  # in a regular expression, what is no label
_GROUP = re.compile(r"\((?!\?)|\(\?P<")
_WITHIN = re.compile(r"\s*best\s+(?:in|within)\s+((?:\d+\.?\d*\s*[hms]\s*)+)", re.IGNORECASE)
_PARTS = re.compile(r"(\d+\.?\d*)\s*([hms])", re.IGNORECASE)
_SECONDS = {"h": 3600, "m": 60, "s": 1}
_SOONEST = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*%?\s+soonest\s*")


class GoalError(ValueError):
    """The message is one sentence for people."""


def less_is_better(name: str) -> bool:
    """By a metric's name; of a regular expression, by the label that stands before its number."""
    if "(" in name and not name.endswith("()"):
        text = _NUMBERS.sub("\0", name).replace("\\(", "{").replace("\\", "")
        group = _GROUP.search(text)
        labels = [each for each in text[: group.start() if group else 0].split("\0") if re.search("[A-Za-z]", each)]
        name = labels[-1] if labels else name
    words = _CAPITALS.sub("_", name)
    return bool(_SMALLER.search(words)) and not _NEGATED.search(words)


@dataclass(frozen=True)
class Goal:
    """
    Attributes:
        maximize: whether more of the metric is better.
        target: the metric that is to be reached as soon as possible; None: the best metric counts.
        within: seconds of each run after which its metric counts, if it has not come to its end; 0: at its end alone.
        against: what the metric is set against, one of `core.search_result.COSTS`: the least that is as good counts.
    """

    maximize: bool
    target: float | None = None
    within: float = 0.0
    against: str = ""

    @property
    def timed(self) -> bool:
        """Whether what counts hangs on how long a run takes."""
        return self.target is not None or self.within > 0

    @property
    def measured(self) -> bool:
        """Whether what counts is seen only of a process that was started afresh."""
        return self.timed or self.against in (MEMORY, STEP, TIME)

    @classmethod
    def parse(cls, text: str, metric: Metric, direction: str = "") -> Goal:
        """`best`, `best in 10m`, or `97 soonest`.

        Args:
            direction: "maximize" or "minimize"; by the metric's name where it is not given.

        Raises:
            GoalError: it is none of these.
        """
        maximize = direction == "maximize" if direction else not less_is_better(metric.name)
        if text.strip() == "best":
            return cls(maximize)
        if match := _WITHIN.fullmatch(text):
            within = sum(float(number) * _SECONDS[unit.lower()] for number, unit in _PARTS.findall(match[1]))
            if within > 0:
                return cls(maximize, within=within)
        if match := _SOONEST.fullmatch(text):
            return cls(maximize, float(match[1]))
        raise GoalError(
            f"{text!r} is no goal; write 'best', 'best in 10m' for the best after a time, or '97 soonest' for a metric "
            "that is to be reached"
        )

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
