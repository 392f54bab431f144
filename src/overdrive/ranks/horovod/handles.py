"""What a Horovod program asks for now, and waits for later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from overdrive.ranks.horovod.coordinator import JOIN
from overdrive.ranks.horovod.requests import Request
from overdrive.ranks.horovod.world import global_process_set, world

__all__ = ["poll", "synchronize"]

_numbers: dict[str, Any] = {}  # of requests without a name, by kind: the same on all ranks that ask alike


class Handle:
    """What was asked for. `made`: what of a request's result is the program's."""

    def __init__(self, requests: Sequence[Request], made: Any) -> None:
        self.requests, self.made = requests, made


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return all(each.done.is_set() for each in handle.requests)


def synchronize(handle: Handle) -> Any:
    """Wait for what was asked for, and return it.

    Raises:
        HorovodInternalError: ranks ask for different things under its name.
    """
    return handle.made([world().coordinator.wait(each) for each in handle.requests])


def asked(kind: str, name: str | None, *details: Any) -> Request:
    if name is None:
        name = f"noname.{next(_numbers.setdefault(kind, count()))}"
    name = kind if kind == JOIN else f"{kind}.{name}"
    return world().coordinator.ask(Request(name, kind, *details))


def for_all(process_set: Any) -> None:
    if process_set is not global_process_set:
        raise NotImplementedError("Overdrive's Horovod interface has no process sets but that of all ranks.")


def only(made: list[Any]) -> Any:
    return made[0]


def count_anew() -> None:
    """After a join: ranks that joined early have asked for less."""
    _numbers.clear()
