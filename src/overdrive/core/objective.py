"""What a tune is to save: time, memory, time within so much memory, or the time of a model's calls alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What the peak must fall by to count, as a share: that of one program has been seen to vary by 1 % from run to run.
LEAST_SAVING = 0.02

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class ObjectiveError(ValueError):
    """A text that names no objective; the message is the end of a sentence."""


def bytes_in(text: str) -> int:
    """`64MB`, `1.5G` or `4096` as bytes, in powers of ten.

    Raises:
        ObjectiveError: it is no size.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip(), re.IGNORECASE)
    if parts is None:
        raise ObjectiveError(f"{text!r} is not a size; write for example 64MB or 1GB")
    return int(float(parts[1]) * _UNITS[parts[2].upper()])


@dataclass(frozen=True)
class Objective:
    """What a plan is found for.

    Attributes:
        aim: "time" or "memory".
        limit: bytes that a plan found for time may use at its peak.
        latency: the time is that of the model's calls alone, without what the program does between two.
        within: seconds that 99 of 100 calls are to be answered in; None: as few as can be.
    """

    aim: str = "time"
    limit: int | None = None
    latency: bool = False
    within: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objective:
        """
        Raises:
            ObjectiveError: it is none of `time`, `throughput` (the same), `memory`, `time-under-memory=SIZE`,
                `latency`, `p99=DURATION`.
        """
        name, _, size = text.partition("=")
        if text in ("time", "throughput"):
            return cls()
        if text == "memory":
            return cls(text)
        if text == "latency":
            return cls(latency=True)
        if name == "p99" and (parts := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", size.strip())):
            seconds = float(parts[1]) / (1000 if parts[2] == "ms" else 1)
            if seconds > 0:
                return cls(latency=True, within=seconds)
        if name == "time-under-memory" and size:
            limit = bytes_in(size)
            if limit > 0:
                return cls("time", limit)
        raise ObjectiveError(
            f"{text!r} is none of time, throughput, memory, time-under-memory=SIZE (for example =8GB), latency and "
            "p99=DURATION (=20ms)"
        )

    def allows(self, peak: int) -> bool:
        """Whether a plan may use so many bytes at its peak; 0: not known."""
        return self.limit is None or 0 < peak <= self.limit

    def __str__(self) -> str:
        if self.latency:
            return "latency" if self.within is None else f"p99={1000 * self.within:g}ms"
        return self.aim if self.limit is None else f"time-under-memory={self.limit}"


TIME = Objective()


def saves(before: int, after: int, spread: int = 0) -> bool:
    """Whether a peak of `after` bytes is clearly below one of `before`; `spread`: that of the program with itself."""
    return after > 0 and before - after > max(LEAST_SAVING * before, 2 * spread)


def size(count: int) -> str:
    """Bytes for people: `7.9 GB`."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 0.9995 * factor:  # which is 1 in three figures
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"
