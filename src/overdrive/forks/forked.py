"""Runs work in a forked process: whatever it does to a data set or a random generator ends with it.

This is how torch's own workers fetch, so a data set that works with workers works here. File offsets
are shared with the parent, so nothing that holds an open file may be used here.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psutil

from overdrive.core.streams import flush
from overdrive.forks import standstill
from overdrive.forks.effects import cut_off
from overdrive.forks.forked_process import ForkedProcess, bury, fork
from overdrive.forks.layout import ForkFailed, Unfit
from overdrive.machine.memory import available_memory
from overdrive.machine.parent import end_with_parent

Tick = Callable[[int], None]
Work = Callable[[Tick], Any]

# The longest that a fetch of one block of samples may take before it is taken to hang. A fork that finds a lock taken
# for ever is told sooner, by `standstill`.
PATIENCE = 60.0
PATIENCE_AT_END = 0.5  # with a killed process, when the program ends


def in_children(works: Sequence[Work], on_tick: Tick | None = None, patience: float = PATIENCE) -> list[Any]:
    """Do all works, each in a process of its own; their results, which must be plain (JSON).

    Raises:
        Unfit: a child raised it, failed, stood still, or made no tick for `patience` seconds.
    """
    if not forks_safely():
        raise Unfit("this system has no safe fork, in which a data set could be tried")
    if standstill.expected():
        raise ForkFailed("forked copies of this program have stood still before")
    children: list[Child] = []
    try:
        for work in works:
            children.append(Child(work))
        _wait(children, on_tick, patience)
    finally:
        for child in children:
            child.end()
    return [child.result() for child in children]


def in_child(work: Work, on_tick: Tick | None = None) -> Any:
    return in_children([work], on_tick)[0]


class Beside:
    """Works in forked processes that go on while the program does, at a low priority. Nobody waits for them.

    They stay in the program's process group, so that who stops or kills the one does it to the others, and
    they end when the program does.
    """

    def __init__(self, works: Sequence[Work], only_idle: bool = True) -> None:
        """
        Args:
            only_idle: they get a core only where it has nothing else to do; else a 60th of a busy one, as nice 19 says.

        Raises:
            ForkFailed: no process could be made.
        """
        self._owner = os.getpid()
        self._children: list[Child] = []
        self._poll = select.poll()
        try:
            for work in works:
                child = Child(work, beside=True, only_idle=only_idle)
                self._children.append(child)
                os.set_blocking(child.pipe, False)
                self._poll.register(child.pipe, select.POLLIN | select.POLLHUP)
        except OSError as error:
            self.end()
            raise ForkFailed(f"no process could be made beside the program ({error.strerror})") from None

    @property
    def going(self) -> bool:
        return bool(self._children)

    def ended(self) -> list[Child]:
        """The works that have ended since the last look, or stand still for good, with their processes. Takes some
        microseconds."""
        bury()
        if os.getpid() != self._owner or not self._children:
            return []
        if self._poll.poll(0):
            done = [child for child in self._children if child.has_ended()]
        else:
            done = [child for child in self._children if child.standstill.found()]
        for child in done:
            self._poll.unregister(child.pipe)
            self._children.remove(child)
            child.end()
        return done

    def end(self) -> float:
        """Kill those that are left. Returns the seconds of processor time that they took."""
        left, self._children = self._children, []
        if os.getpid() != self._owner:
            return 0.0
        for child in left:
            child.end(PATIENCE_AT_END)
        return sum(child.seconds for child in left)


class Child(ForkedProcess):
    """One forked process, and what it says at its end.

    Attributes:
        standstill: whether it will never go on.
    """

    def __init__(self, work: Work, beside: bool = False, only_idle: bool = True) -> None:
        bury()
        self.output = b""
        # What is still in a buffer must not come out twice. Beside the program no buffer is emptied: one that is, long
        # before its time, would change the order of lines where two streams go to the same file.
        if not beside:
            flush()
        self.pipe, writing = os.pipe()
        parent = os.getpid()
        dies_with_us = threading.current_thread() is threading.main_thread()
        aside = partial(stand_back, parent, dies_with_us, only_idle) if beside else None
        try:
            super().__init__(fork())
        except OSError:
            os.close(self.pipe)
            os.close(writing)
            raise
        if self.pid == 0:
            _be_child(work, writing, parent, aside)
        os.close(writing)
        self.standstill = standstill.Standstill(self.pid)

    def has_ended(self) -> bool:
        """Take in what it has to say, without waiting for it; whether that was all, and the process is gone."""
        try:
            while data := os.read(self.pipe, 1 << 16):
                self.output += data
        except BlockingIOError:
            return False
        return self.is_gone()

    def result(self) -> Any:
        line = self.output.rsplit(b"\n", 2)[-2:-1]
        try:
            kind, value = json.loads(line[0])
        except (IndexError, ValueError, TypeError):
            raise ForkFailed("fetching samples in a forked process ended it") from None
        if kind == "unfit":
            raise Unfit(value)
        return value

    def end(self, patience: float = PATIENCE) -> None:
        self.kill(patience)  # it has reported, or never will
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


def forks_safely() -> bool:
    """Whether a fork of a process with threads works on this system."""
    return hasattr(os, "fork") and sys.platform != "darwin"


def may_fork() -> bool:
    """Whether there is memory enough for a copy of what this process writes to while its forks live."""
    try:
        memory = psutil.Process().memory_info()
        return bool(2 * (memory.rss - getattr(memory, "shared", 0)) < available_memory())
    except psutil.Error:
        return False


def _wait(children: list[Child], on_tick: Tick | None, patience: float) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        last = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(timeout=standstill.INTERVAL / 2):
                child = key.data
                data = os.read(child.pipe, 1 << 16)
                last = time.monotonic()
                if not data:
                    selector.unregister(child.pipe)
                    continue
                child.output += data
                *lines, child.output = child.output.split(b"\n")
                ticks = [int(line) for line in lines if line.isdigit()]
                child.output = b"".join(line + b"\n" for line in lines if not line.isdigit()) + child.output
                if ticks and on_tick is not None:
                    on_tick(sum(ticks))
            waiting = [key.data for key in selector.get_map().values()]
            if any(child.standstill.found() for child in waiting):
                raise ForkFailed("a forked copy of the program stood still: it waits for a lock that nobody gives back")
            if time.monotonic() - last > patience:
                raise ForkFailed(f"fetching samples in a forked process stood still for {patience:.0f} s")


def _be_child(work: Work, pipe: int, parent: int, aside: Callable[[], None] | None) -> None:
    """Never returns, and runs none of the parent's cleaning up.

    Args:
        aside: where the program goes on beside; None where it waits.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here must leave no file in the program's folder
        gc.freeze()  # an iterator of the parent's that is collected here would stop the parent's workers
        forget_handlers()
        if aside is not None:
            aside()
        cut_off(keep=(pipe,))
        import torch

        torch.set_num_threads(1)  # as torch's workers do: OpenMP's threads did not survive the fork

        def tick(count: int) -> None:
            if os.getppid() != parent:
                os._exit(1)
            if aside is None:  # else nobody reads until the end, and a full pipe would stop us
                os.write(pipe, b"%d\n" % count)

        try:
            outcome: tuple[str, Any] = ("done", work(tick))
        except Unfit as error:
            outcome = ("unfit", str(error))
        except BaseException as error:
            first = str(error).strip().split("\n", 1)[0][:200]
            outcome = ("unfit", f"a sample could not be fetched in a test ({type(error).__name__}: {first})")
        data = json.dumps(outcome).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def forget_handlers() -> None:
    """A signal to the whole process group must not make us do what the program does on it (save, say)."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stand_back(parent: int, dies_with_us: bool, only_idle: bool) -> None:
    """Take a low priority, and end with the program."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        if only_idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if dies_with_us:  # the kernel would kill us with the thread that forked, not with the process
        end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
