"""What is asked of more and more ranks, which may be slow or fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overdrive.core.link import Link


@dataclass(frozen=True)
class Slow:
    """`share` of ranks, each by chance, whose computing takes `times` as long in all of a run."""

    share: float
    times: float


@dataclass(frozen=True)
class Survival:
    """Of a run that survives, in seconds.

    Attributes:
        snapshot: of the run that one costs.
        start: from the loss of a rank until all have been started again and are at their program's first step.
        replay: of each step that is skipped on the way back.
    """

    snapshot: float
    start: float
    replay: float


@dataclass(frozen=True)
class Failures:
    """`mtbf`: mean time between two failures of one rank, in seconds; `steps`: of the whole run."""

    mtbf: float
    steps: int
    survival: Survival


@dataclass(frozen=True)
class Sizes:
    """What was asked: from so many ranks to so many, over a link.

    Attributes:
        layout: whose ranks are all alike: data, zero1 or shard.
        stated: what the user said of ranks that are slow or fail, in words.
    """

    first: int
    last: int
    link: Link
    layout: str = "data"
    slow: Slow | None = None
    failures: Failures | None = None
    stated: tuple[str, ...] = ()

    def each(self) -> Iterator[int]:
        """Twice as many each time, and the last."""
        size = self.first
        while size < self.last:
            yield size
            size *= 2
        yield self.last
