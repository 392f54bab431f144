"""Watches, in a thread, whether a run goes on: told in one line, with the stacks of all threads in a file."""

from __future__ import annotations

import _thread
import math
import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from overdrive.core.streams import flush
from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER
from overdrive.survive.ending import end_children
from overdrive.worker.watching.pauses import Pauses
from overdrive.worker.watching.stacks import Stacks

HUNG = 75  # exit code of a run that is ended because it stands, as EX_TEMPFAIL of sysexits.h: it may be tried again
_LOOKS = 60  # within the least time that is called a hang, but every 5 s at most
_OFTEN, _SELDOM = 0.1, 5.0
_LATE = 1.0  # seconds by which a look may be late; else the process was stopped, or C held Python's lock
_LATELY = 10.0  # seconds for which stacks that were written are those of now
_FLUSHES = 2.0  # seconds for the program's last lines: another thread may hold the stream


class HangWatch:
    """An observer for `Session`; ends with it.

    Attributes:
        waits_for_others: whether this process only waits for other ranks, so that it is not the one that stands.
        ask_others: has all other ranks write their stacks, where there are some.
    """

    def __init__(
        self, action: str, least: float, steps: Callable[[], int], stacks: Stacks | None, say: Callable[[str], None]
    ) -> None:
        """
        Args:
            action: "stop", "stacks" or "go-on".
            least: seconds without a sign of life that are never called a hang.
            steps: complete ones so far.
            stacks: None for "go-on".
            say: must not wait for what the program may hold.
        """
        self._action, self._steps, self._stacks, self._say = action, steps, stacks, say
        self._pauses = Pauses(least)
        self._every = min(_SELDOM, max(_OFTEN, least / _LOOKS))
        self._signs = 0
        self._told = False
        self._over, self._arming = threading.Event(), threading.Lock()
        self._process = os.getpid()
        self._clock = time.monotonic  # as it is before a program's clock is noted
        self.waits_for_others: Callable[[], bool] = lambda: False
        self.ask_others: Callable[[], None] = lambda: None
        self._writing, self._written_at = threading.Lock(), -math.inf

    def __call__(self, seams: Seams) -> None:
        with seams.owned_by(f"{OBSERVER} of hangs"):
            seams.batch_fetched.subscribe(self._lives)  # an evaluation makes no step, and lives
            seams.at_work.subscribe(self._lives)
            seams.model_begins.subscribe(self._lives)  # so does one that makes its batches by hand
            seams.on_undo(self._end)
        # Not a `threading.Thread`: the program may count those.
        _thread.start_new_thread(self._watch, ())

    def _lives(self, *_: object) -> None:
        self._signs += 1

    def _end(self) -> None:
        if os.getpid() != self._process:  # which has neither thread nor timer
            return
        with self._arming:
            self._over.set()
            if self._stacks:
                self._stacks.close()

    def _watch(self) -> None:
        looked = self._clock()
        while not self._over.wait(self._every):
            now = self._clock()
            late = now - looked - self._every
            looked = now
            if late > _LATE:
                self._pauses.stood_still(late)
                if self._stacks and not self._told:
                    self._stacks.forget()
            self._look(now)

    def _look(self, now: float) -> None:
        if self.waits_for_others():
            self._signs += 1
        pause = self._pauses.look(now, self._steps(), self._signs)
        if not pause:
            self._told = False
        elif pause > self._pauses.bound and not self._told:
            self._told = True
            self._tell(pause)
        with self._arming:
            if self._stacks and not self._over.is_set():  # in case this thread does not get its turn again
                in_need = self._steps() and not self._told
                self._stacks.write_in(self._pauses.bound + self._every if in_need else 0)

    def _tell(self, pause: float) -> None:
        if self._stacks:
            self._stacks.write_in(0)
        told = f"no step and no batch for {pause:,.0f} s, since step {self._steps():,}"
        where = f"; the stacks of all threads are in {self._stacks.path}" if self._stacks and self._write(told) else ""
        self._say(f"{told}{where}" + (": the run ends here (--on-hang stop)" if self._action == "stop" else ""))
        if self._stacks:
            self.ask_others()
        if self._action == "stop":
            self._stop()

    def write_stacks(self, why: str) -> bool:
        """As another rank asks for it, from another thread. Whether they are wished for."""
        if self._stacks and not self._over.is_set() and self._clock() - self._written_at > _LATELY and self._write(why):
            self._say(f"where this rank stands meanwhile is in {self._stacks.path}")
        return self._stacks is not None

    def _write(self, why: str) -> bool:
        assert self._stacks is not None
        with self._writing:
            self._written_at = self._clock()
            return self._stacks.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {why}")

    def _stop(self) -> NoReturn:
        """From a thread beside the one that stands, which nothing can be raised in."""
        flushed = threading.Event()
        _thread.start_new_thread(_flush, (flushed,))
        flushed.wait(_FLUSHES)
        end_children()
        os._exit(HUNG)


def _flush(flushed: threading.Event) -> None:
    flush()
    flushed.set()
