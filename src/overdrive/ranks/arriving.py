"""That all ranks of a run come, for which each waits as long as a start may take."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from overdrive.core.units import listed
from overdrive.ranks.monitor import TOLD, note_told

START = timedelta(seconds=60)
_LOOKS = 0.05  # seconds
_HEARD = 2.0  # seconds in which the others hear why all end, before the store goes with this rank


class CannotMeet(Exception):
    """The message is one sentence for people; none, where another rank has said it."""


def missing_of(store: Any, keys: Sequence[str]) -> list[str]:
    """Those that nobody has set in the time of a start.

    Raises:
        CannotMeet: a rank has said meanwhile why all end, or rank 0 is gone.
    """
    until, left = time.monotonic() + START.total_seconds(), [*keys]
    try:
        while left := [key for key in left if not store.check([key])]:
            if store.check([TOLD]):
                raise CannotMeet("")
            if time.monotonic() > until:
                break
            time.sleep(_LOOKS)
    except RuntimeError as error:  # of the store
        raise CannotMeet(f"what started the ranks, or rank 0, is gone ({str(error).splitlines()[0]})") from None
    return left


def room_of_start(server: Any, rank: int) -> str:
    """The part for this start of all ranks, of a store that has the words of those before.

    Of several agents none knows how often all were started: each counts when one of its own ranks has failed. So rank 0
    opens a room for each start, and the others look for the one in which it lives.

    Raises:
        CannotMeet: rank 0 does not come.
    """
    counted = server.within("overdrive")
    if rank == 0:
        return _room(counted.add("starts", 1))
    until = time.monotonic() + START.total_seconds()
    first: dict[str, bytes] = {}
    try:
        while time.monotonic() < until:
            room = _room(counted.get("starts")) if counted.check(["starts"]) else ""
            if room and server.within(room).check(["beat/0"]):
                beat = server.within(room).get("beat/0")
                if first.setdefault(room, beat) != beat:
                    return room
            time.sleep(_LOOKS)
    except RuntimeError as error:  # of the store
        raise CannotMeet(f"what started the ranks is gone ({str(error).splitlines()[0]})") from None
    raise CannotMeet(f"rank 0 did not come within {START.total_seconds():.0f} s, for which rank {rank} waited")


def _room(start: bytes | int) -> str:
    return f"overdrive {int(start)}"


def take_place(store: Any, rank: int) -> None:
    """
    Raises:
        CannotMeet: another process has that number.
    """
    if store.add(f"places/{rank}", 1) == 1:
        store.set(f"place/{rank}", f"{socket.gethostname()}, process {os.getpid()}")
        return
    other = "" if missing_of(store, [f"place/{rank}"]) else f" ({store.get(f'place/{rank}').decode()})"
    raise CannotMeet(
        f"another process is rank {rank} of this run already{other}: a program that is started beside it needs a "
        "MASTER_PORT of its own"
    )


def wait_for_all(store: Any, size: int, place: str) -> None:
    """
    Args:
        store: in which every rank that has come tells that it lives.
        place: where the store is.

    Raises:
        CannotMeet: one has not come in the time of a start.
    """
    missing = missing_of(store, [f"beat/{rank}" for rank in range(size)])
    if not missing:
        return
    is_first = note_told(store)
    time.sleep(_HEARD)
    ranks = [_named(store, int(key.partition("/")[2])) for key in missing]
    raise CannotMeet(
        f"rank{'s' if ranks[1:] else ''} {listed(ranks)} of {size} did not come to {place} within "
        f"{START.total_seconds():.0f} s: not started, failed, or late"
        if is_first
        else ""
    )


def _named(store: Any, rank: int) -> str:
    """One that has taken its place may not have come further."""
    place = f"place/{rank}"
    return f"{rank} on {store.get(place).decode()}," if store.check([place]) else str(rank)
