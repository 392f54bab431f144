"""A lock of ours that a program's forks need not wait for."""

from __future__ import annotations

import os
import threading
import weakref


class OwnLock:
    """A lock that a forked process finds free: a thread that held it at the fork is not there to give it back.

    The thread that forked may hold it, more than once, and holds it in the forked process, too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder = 0
        self._depth = 0
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = 0
        self._lock.release()

    def in_child(self) -> None:
        """In a forked process, before its own code."""
        if self._holder != threading.get_ident():
            self._lock, self._holder, self._depth = threading.RLock(), 0, 0


_all: weakref.WeakSet[OwnLock] = weakref.WeakSet()


def _all_in_child() -> None:
    for lock in list(_all):
        lock.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_all_in_child)
