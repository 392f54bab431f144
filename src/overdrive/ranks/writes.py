"""What rank 0 is in the middle of writing, which it may bring to its end where the run ends for another rank.

A write goes from the opening of a file to its close. Where the program exchanges something before that, the file is a
log, say, which is as good at one time as at another.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from overdrive.core.flag import Flag

if TYPE_CHECKING:
    from overdrive.ranks.monitor import Monitor

LONGEST = 10.0  # seconds that a write may take from when the run is to end
_LOOKS = 0.05


class Writes:
    """In this process, whose main thread writes."""

    def __init__(self) -> None:
        self._monitor: Monitor | None = None
        self._number = 0  # of the exchange before these files were opened
        self._opened: list[weakref.ref[Any]] = []
        self._making = Flag()
        self._until = 0.0  # when it ends in any case; 0: it is not to end
        self._process = os.getpid()

    @property
    def under_way(self) -> bool:
        monitor = self._monitor
        if monitor is None or monitor.waiting or monitor.number != self._number:
            return False
        files = [each() for each in self._opened]
        return bool(self._making) or any(each is not None and not each.closed for each in files)

    @contextmanager
    def making(self, monitor: Monitor) -> Iterator[list[Any]]:
        """A call that opens a file, or writes one as a whole. An open file is to be put into the list."""
        if monitor.number != self._number:
            self._opened.clear()
        self._monitor, self._number = monitor, monitor.number
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the program sees to it
            signal.signal(signal.SIGTERM, self._asked)
            # A handler of Python's is not called within an exchange, which may not come to an end.
            monitor.at_next_wait = self.hear_no_more
        made: list[Any] = []
        with self._making:
            yield made
        self._opened += [weakref.ref(each) for each in made if hasattr(each, "closed")]

    def wait_for_end(self) -> None:
        """Of what is under way; in another thread."""
        until = self._until or time.monotonic() + LONGEST
        while self.under_way and time.monotonic() < until:
            time.sleep(_LOOKS)

    def hear_no_more(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == self._asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _asked(self, number: int, frame: Any) -> None:
        """By whoever started the ranks, of which one is lost."""
        now = time.monotonic()
        if os.getpid() != self._process or not self.under_way or (self._until and now >= self._until):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._until:
            self._until = now + LONGEST
            threading.Thread(target=self._ask_again, args=(number,), daemon=True).start()

    def _ask_again(self, number: int) -> None:
        self.wait_for_end()
        os.kill(self._process, number)
