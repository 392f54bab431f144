"""The number that a statistical proof compares: the training loss, or one that the program prints or returns."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.core.printed import NUMBER, number
from overdrive.core.shown import without_colours

TRAINING_LOSS = "training loss"
# The mean loss of the last third of the steps: runs of a few hundred steps spread over seeds by half as much more in
# their last tenth, where the batches of 12 to 40 steps are most of it.
TAIL = 3
# What a number may be wrapped in after a colon or an equals sign, as in what is printed of dictionaries, JSON, tensors
# and NumPy's numbers: `'acc': '0.93'`, `"acc": 0.93`, `acc=[0.93]`, `acc: tensor(0.93)`. `[3/10]` is no value.
_WRAPPED = r"(?:(?<=[:=])[ \t]*\[{0,2}(?:[A-Za-z_][\w.]*\(\[{0,2})?['\"]?(?!\d+[ \t]*/))?"
_BETWEEN = "[ \\t:=>|~│┃║→-]"  # a metric's name and its number; the lines are those of tables
_FEWEST_PRINTED = 3  # numbers, for the first of them to be a beginning


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
        named = rf"(?<!\w){re.escape(self.name)}(?!\w)['\"]?(?:[ \t]*[(\[]%[)\]])?"
        return re.compile(rf"(?i){named}{_BETWEEN}*?{_WRAPPED}{NUMBER}")

    def value(self, losses: Sequence[float], output: str, returned: float | None) -> float:
        """The metric of one run; nan where it is not there."""
        if self.is_loss:
            tail = losses[-max(1, len(losses) // TAIL) :]
            value = statistics.fmean(tail) if tail else math.nan
            return value if math.isfinite(value) else math.nan
        if self.function:
            return math.nan if returned is None else returned
        found = self.printed(output)
        return found[-1] if found else math.nan

    def first(self, output: str) -> float | None:
        """The metric where a run printed it first; None where it is not printed several times."""
        found = self.printed(output)
        return found[0] if len(found) >= _FEWEST_PRINTED and math.isfinite(found[0]) else None

    def printed(self, output: str) -> list[float]:
        """All that a run printed of it, in order. A word of the user's own expression that is no number counts as nan.
        That expression may name colours."""
        if self.is_loss or self.function:
            return []
        pattern, found = self._pattern(), []
        words = pattern.findall(output) if "(" in self.name else []
        for each in words or pattern.findall(without_colours(output)):
            try:
                found.append(number(each))
            except ValueError:
                found.append(math.nan)
        return found

    def missing(self) -> str:
        """The sentence for a metric that never appeared."""
        if self.is_loss:
            return "the program's own training loss is not finite under any seed"
        if self.function:
            return f"no function {self.function} of the program returned a number"
        return f"the program never printed a number after {self.name!r}"
