"""The record of a run, as data: what `overdrive run --record FILE` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overdrive.core.call_sizes import CallSize
from overdrive.core.interval import Interval

VERSION = 1  # of the form


@dataclass(frozen=True)
class RunRecord:
    """What a run did, step by step. `losses` are those of `loss_values` to the last bit, as `float.hex` writes them."""

    version: int = VERSION
    program: str = ""
    steps: int = 0
    samples: float = 0
    samples_per_s: float | None = None
    seconds_per_step: float | None = None
    # Of a program that trains nothing, on a CPU: seconds that half of its calls take (p50), 99 of 100 at most (p99).
    half: Interval | None = None
    most: Interval | None = None
    call_sizes: tuple[CallSize, ...] = ()  # what its calls were given
    losses: tuple[tuple[str, ...], ...] = ()  # by step, all that were sent backward
    loss_values: tuple[tuple[float, ...], ...] = ()  # None where one is not finite
    learning_rates: tuple[float, ...] = ()
    parameters: str | None = None  # sha256 of all parameters at the end
    techniques: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # with the reason
    error: str | None = None  # the kind of what the program raised
