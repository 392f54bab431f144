"""What was measured of a program for its profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overdrive.core.facts import Facts


@dataclass
class Measured:
    """Times in seconds a step."""

    step: float = 0.0  # in plain blocks
    timed: float = 0.0  # in timed ones, the same steps
    phases: dict[str, float] = field(default_factory=dict)  # of the timed ones, without what looking at the clock costs
    error: float = 0.0  # the standard error of timed / step
    steps: int = 0
    pairs: int = 0
    dropped: int = 0  # pairs of blocks that were disturbed
    processes: int = 0  # pairs of
    details: Mapping[str, Any] = field(default_factory=dict)
    facts: Facts | None = None
    inference: bool = False  # its steps are the calls of its model
    walls: dict[str, float] = field(default_factory=dict)  # a step while it was recorded so
    recorded: dict[str, int] = field(default_factory=dict)  # steps
    not_recorded: dict[str, str] = field(default_factory=dict)  # why
    length: int | None = None  # the program's steps, where it ended
    trace: str = ""
