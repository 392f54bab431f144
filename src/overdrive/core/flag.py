"""Flags that are up for a while: within `with flag:`, of which one may stand within another."""

from __future__ import annotations

import threading


class Flag:
    """For what is asked rarely: who is asked thousands of times a step keeps a plain attribute, which is faster."""

    _raised = 0

    def __bool__(self) -> bool:
        return self._raised > 0

    def __enter__(self) -> None:
        self._raised += 1

    def __exit__(self, *failure: object) -> None:
        self._raised -= 1


class FlagOfThread(threading.local, Flag):
    """Each thread has its own."""
