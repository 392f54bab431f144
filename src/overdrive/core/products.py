"""What a run of a program produced besides its losses, in few numbers. Plain data, made in trials that nobody times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Evaluation:
    """All calls of models outside of training between two training steps.

    `level` and `size` are the mean and the root mean square of what came out; the others are of a soft maximum over the
    classes, and 0 where what came out has none.
    """

    rows: int  # samples, or words, pixels, ...
    level: float
    size: float
    confidence: float = 0.0  # mean of the largest probability
    entropy: float = 0.0  # mean, in nats
    classes: tuple[float, ...] = ()  # shares of rows by predicted class, neighbours together where there are many


@dataclass(frozen=True)
class Products:
    """What one run produced, up to its last step."""

    evaluations: tuple[Evaluation, ...] = ()  # the last one, and evenly spaced ones before
    held: Evaluation | None = None  # of the first batches that were trained on, by the model as it is at the end
    predictions: tuple[int, ...] = ()  # of the last evaluation's first rows
    state: Mapping[str, float] = field(default_factory=dict)  # of buffers and parameters at the end, by name
