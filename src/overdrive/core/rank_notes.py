"""What one rank noted of its steps: how long it computed, and what it exchanged with the others."""

from __future__ import annotations

from dataclasses import dataclass

STEP = "step"  # a step of training is over


@dataclass(frozen=True)
class Note:
    """Something that a rank began, or waited for.

    Attributes:
        computed: seconds since its last note.
        operation: what it began, as `machine.pool.curve` names them, with "send" and "receive" for what goes from one
            to another; empty: it waits for what it began; or `STEP`.
        number: of what it began, on this rank.
        bytes: of the whole, where it is put together or divided.
        channel: exchanges of one channel follow each other, in the same order on all of its members.
        members: ranks of the run that take part; the one that sends and the one that receives.
        tag: of what goes from one to another.
    """

    computed: float
    operation: str
    number: int = 0
    bytes: int = 0
    channel: str = ""
    members: tuple[int, ...] = ()
    tag: int = 0
