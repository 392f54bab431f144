"""Which threads are in a call now: what one changes for the length of its call, all threads see."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from overdrive.core.own_lock import OwnLock

_LONGEST = 60.0  # seconds: a call that waits itself, for what waits for it, goes on one day


class Callers:
    """
    Attributes:
        crowded: there have been several at once.
    """

    def __init__(self) -> None:
        self.crowded = False
        self._lock = OwnLock()
        self._inside: set[int] = set()
        self._unchanged = threading.Event()
        self._unchanged.set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """This thread is in a call. It begins when no other's is in one that changes something."""
        own = threading.get_ident()
        with self._lock:
            self.crowded |= bool(self._inside - {own})
            self._inside.add(own)
        try:
            if self.crowded:
                self._unchanged.wait(_LONGEST)
            yield
        finally:
            with self._lock:
                self._inside.discard(own)

    @contextmanager
    def changing(self) -> Iterator[bool]:
        """Whether this thread's call may change something, in here: it is alone, and others wait for its end."""
        with self._lock:
            alone = not self.crowded and self._unchanged.is_set()
            if alone:
                self._unchanged.clear()
        try:
            yield alone
        finally:
            if alone:
                self._unchanged.set()
