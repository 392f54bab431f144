"""Processes of ours beside the program, which is not to hear of them: one at a time, and none while it forks itself."""

from __future__ import annotations

import os
import signal
import weakref
from functools import cache
from typing import Protocol


class Owner(Protocol):
    """Who has such a process."""

    def give_up(self) -> None:
        """End it at once."""


_going: weakref.WeakSet[Owner] = weakref.WeakSet()


def unnoticed() -> bool:
    """Whether the program does not hear of the end of a process that it has not started. PyTorch's own handler looks
    at workers alone."""
    handler = signal.getsignal(signal.SIGCHLD)
    return handler is signal.SIG_DFL or str(getattr(handler, "__module__", "")).startswith("torch.")


def are_going() -> bool:
    """Whether somebody has one: another fork would end it."""
    return bool(_going)


def began(owner: Owner) -> None:
    """It has been started."""
    _at_each_fork()
    _going.add(owner)


def over(owner: Owner) -> None:
    _going.discard(owner)


@cache
def _at_each_fork() -> None:
    """A program that forks may wait for whichever process ends first: it is to have none but its own."""
    os.register_at_fork(before=_none_going)


def _none_going() -> None:
    for owner in list(_going):
        owner.give_up()
