"""The number that a statistical proof compares: the training loss, or one that the program prints or returns."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TRAINING_LOSS = "training loss"
_TAIL = 10  # the mean loss of the last tenth of the steps
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"


class MetricError(ValueError):
    """The name is no metric; the message says why."""


@dataclass(frozen=True)
class Metric:
    """`name`: "training loss"; `evaluate()`: what a function returned last; a regular expression with one group;
    or a word that stands before the number in the program's output, the last time it is printed: "Accuracy".
    """

    name: str = TRAINING_LOSS

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise MetricError("the metric has no name")
        try:
            groups = self._pattern().groups
        except re.error as error:
            raise MetricError(f"{self.name!r} is not a regular expression ({error})") from None
        if groups != 1:
            raise MetricError(f"{self.name!r} must have one group in parentheses: the number")

    @property
    def is_loss(self) -> bool:
        return self.name == TRAINING_LOSS

    @property
    def function(self) -> str:
        """The name of the function whose returned value is meant, or nothing."""
        match = re.fullmatch(r"([A-Za-z_]\w*)\(\)", self.name)
        return match[1] if match else ""

    def _pattern(self) -> re.Pattern[str]:
        if self.function or self.is_loss:
            return re.compile("()")
        if "(" in self.name:
            return re.compile(self.name)
        return re.compile(rf"(?i)(?<!\w){re.escape(self.name)}(?!\w)[ \t:=>|~-]*?{_NUMBER}")

    def value(self, losses: Sequence[float], output: str, returned: float | None) -> float:
        """The metric of one run; nan where it is not there."""
        if self.is_loss:
            tail = losses[-max(1, len(losses) // _TAIL) :]
            value = statistics.fmean(tail) if tail else math.nan
            return value if math.isfinite(value) else math.nan
        if self.function:
            return math.nan if returned is None else returned
        found = self._pattern().findall(output)
        try:
            return float(found[-1]) if found else math.nan
        except ValueError:
            return math.nan

    def missing(self) -> str:
        """The sentence for a metric that never appeared."""
        if self.is_loss:
            return "the program's own training loss is not finite under any seed"
        if self.function:
            return f"no function {self.function} of the program returned a number"
        return f"the program never printed a number after {self.name!r}"
