"""What a run that survives has to know of the ranks beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from overdrive.seams.clocks import Read
from overdrive.survive.in_parts import InParts


@dataclass(frozen=True)
class InGroup:
    """One process of several that run the same program. Rank 0 takes the snapshots; all go on from these.

    Attributes:
        leave: told before this process ends by itself: others need not say that it is gone.
        aside: what is read within, this process reads alone.
        times: makes of what answers for the times that the program reads what answers with rank 0's.
        agree: where each keeps a share of the optimizers' state alone: given whether this process is to take a
            snapshot now, it tells all whether rank 0 is. None where rank 0 has all of the state.
        in_parts: where each keeps parts of the parameters, and of a snapshot; else None.
        launched: by somebody else, such as torchrun, whose agent sends a signal to all of this process's group.
    """

    rank: int
    leave: Callable[[], None]
    aside: Callable[[], AbstractContextManager[None]]
    times: Callable[[Read], Read]
    agree: Callable[[bool], bool] | None = None
    in_parts: InParts | None = None
    launched: bool = False
