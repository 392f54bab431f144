"""Processes of ours beside the program, which is not to hear of them: one at a time, and none while it forks itself."""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from overdrive.core.in_place import in_place_of, stands
from overdrive.forks.forked_process import forget, is_ours


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
    _keep_from_program()
    _going.add(owner)


def over(owner: Owner) -> None:
    _going.discard(owner)


@cache
def _keep_from_program() -> None:
    """A program that waits for whichever process ends first is to find none but its own. So none of ours is going where
    it forks or waits so; one that was killed a moment ago may still be dying, and is passed over."""
    os.register_at_fork(before=_none_going)
    for name, first in (("wait", _pid), ("wait3", _pid), ("waitpid", _pid), ("wait4", _pid), ("waitid", _si_pid)):
        if original := getattr(os, name, None):
            setattr(os, name, waiting := _of_its_own(original, first))
            stands(waiting, os, name)


def _none_going() -> None:
    for owner in list(_going):
        owner.give_up()


def _pid(found: Any) -> int:
    return int(found[0])


def _si_pid(found: Any) -> int:
    return 0 if found is None else int(found.si_pid)


def _of_its_own(original: Callable[..., Any], pid_of: Callable[[Any], int]) -> Callable[..., Any]:
    """The system's call, which does not return with a process of ours but goes on waiting."""
    names_one = original.__name__ in ("waitpid", "wait4")

    @in_place_of(original)
    def waiting(*arguments: Any, **named: Any) -> Any:
        if names_one and arguments and isinstance(arguments[0], int) and arguments[0] > 0:
            return original(*arguments, **named)
        _none_going()
        while is_ours(pid := pid_of(found := original(*arguments, **named))):
            with contextlib.suppress(ChildProcessError):  # it was waited for, but where it was to be looked at alone
                os.waitpid(pid, 0)
            forget(pid)
        return found

    return waiting
