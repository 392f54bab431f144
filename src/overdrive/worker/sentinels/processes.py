"""A step that is made more than once, each time in a process of its own, from the moment at which it is forked.

The program forks a *fork server*, which stands still as the program was at that moment, and forks itself for each time
that the step is to be made. Such a *copy* goes on as the program would: it returns from `ForkServer.fork`, and ends by
`tell` or `leave` where its step does. So the program pays for one fork, and the same step can be made in several ways.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from overdrive.changes.mappings import mapped_for_writing
from overdrive.core.rng import States
from overdrive.forks.effects import cut_off, effect_of
from overdrive.forks.forked import forget_handlers, stand_back
from overdrive.forks.forked_process import ForkedProcess, bury, fork
from overdrive.forks.layout import ForkFailed
from overdrive.machine.parent import end_with_parent
from overdrive.sandbox.detached import own_files, own_memory, write_nothing
from overdrive.worker.sentinels import openmp

PATIENCE = 120  # seconds for one step at the lowest priority: nobody waits for it
_GIVEN_UP_AFTER = PATIENCE + 30.0  # where nothing was told at all: it has stopped before it could be timed
_READY_WITHIN = 1.0  # seconds that the program waits until memory that it shares is copied
_DEAD_WITHIN = 0.5  # seconds that the program waits where it is killed
_PIPE = 1 << 20  # bytes: what a copy tells should not make it wait


@dataclass(frozen=True)
class Repetition:
    """How a step is made again: these techniques are switched off; parameters are disturbed at random where `seed`."""

    off: Sequence[str]
    seed: int = 0


@dataclass(frozen=True)
class CopyResult:
    """What a copy tells: what its step came to, or why it does not tell that."""

    way: Repetition
    found: Any = None
    failed: str = ""


class ForkServer(ForkedProcess):
    """The program's side. Its seconds are those of its copies, too."""

    def __init__(self, pid: int, telling: int, orders: int) -> None:
        super().__init__(pid)
        self._telling = telling
        self._orders = orders
        self._output = b""
        self._until = time.monotonic() + _GIVEN_UP_AFTER
        self._poll = select.poll()
        self._poll.register(telling, select.POLLIN | select.POLLHUP)

    @classmethod
    def fork(cls, way: Repetition) -> ForkServer | Copy:
        """A fork server, which makes the step once in this way. Returns a `Copy` in each process that makes it.

        Raises:
            ForkFailed: no process could be made.
        """
        bury()
        shares, chance = bool(mapped_for_writing()), States.now()
        main = threading.current_thread() is threading.main_thread()
        openmp.pause()
        telling, orders = os.pipe(), os.pipe()
        parent = os.getpid()
        try:
            pid = fork()
        except OSError as error:
            for end in (*telling, *orders):
                os.close(end)
            raise ForkFailed(f"no process could be made beside the program ({error.strerror})") from None
        if pid == 0:
            return _keep(way, telling[1], orders[0], _Origin(parent, main, chance))
        os.close(telling[1])
        os.close(orders[0])
        with contextlib.suppress(OSError, AttributeError):
            import fcntl

            fcntl.fcntl(telling[0], fcntl.F_SETPIPE_SZ, _PIPE)
        fork_server = cls(pid, telling[0], orders[1])
        os.set_blocking(telling[0], False)
        if shares and not fork_server._is_ready():
            fork_server.end()
            raise ForkFailed("memory that is shared with other processes could not be copied in time")
        return fork_server

    def _is_ready(self) -> bool:
        return bool(self._poll.poll(_READY_WITHIN * 1000)) and not self.is_gone()

    def order(self, way: Repetition) -> None:
        """Have the step made once more."""
        self._until = time.monotonic() + _GIVEN_UP_AFTER
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, json.dumps(asdict(way)).encode() + b"\n")

    def told(self) -> list[CopyResult] | None:
        """What was told since the last look; None where there is nobody left to tell, or nothing told in time. Some
        microseconds."""
        if not self._poll.poll(0):
            return [] if time.monotonic() < self._until else None
        ended = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._telling, 1 << 20):
                self._output += data
            ended = True
        *lines, self._output = self._output.split(b"\n")
        found = [told for line in lines if (told := _read(line))]
        return None if ended and not found else found

    def end(self) -> float:
        """Kill it. Returns the seconds of processor time that it took."""
        if self._telling >= 0:
            self.kill(_DEAD_WITHIN)
            os.close(self._telling)
            os.close(self._orders)
            self._telling = -1
        return self.seconds


def _read(line: bytes) -> CopyResult | None:
    try:
        way, found, failed = json.loads(line)
        return CopyResult(Repetition(**way), found, failed)
    except (ValueError, TypeError):  # of a copy that was killed as it told
        return None


@dataclass(frozen=True)
class _Origin:
    parent: int
    main_thread: bool  # the kernel ends us with the thread that forked, not with the process
    chance: States


class Copy:
    """The side of a process in which the step is made again. Nothing it does is seen outside, but what it tells."""

    def __init__(self, way: Repetition, telling: int) -> None:
        self.way = way
        self._telling = telling
        self._process = os.getpid()

    def tell(self, found: Any) -> NoReturn:
        self._end(found, "")

    def leave(self, reason: str) -> NoReturn:
        """The step cannot be compared."""
        self._end(None, reason)

    def _end(self, found: Any, failed: str) -> NoReturn:
        try:
            if os.getpid() == self._process:
                data = b"\n" + json.dumps([asdict(self.way), found, failed]).encode() + b"\n"
                while data:
                    data = data[os.write(self._telling, data) :]
        finally:
            os._exit(0)

    def stop_effects(self) -> None:
        """From now on it ends where the program writes, sends or starts something."""

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if effect := effect_of(event, arguments):
                self.leave(f"the step {effect}")

        sys.addaudithook(hook)


def _keep(way: Repetition, telling: int, orders: int, origin: _Origin) -> Copy:
    """The fork server, which never returns but in a copy, and runs none of the program's cleaning up."""
    fork_server = os.getpid()
    try:
        own_memory()
        os.write(telling, b"\n")  # ready: the program goes on, where it shares memory
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # where memory runs short, we go first
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here must leave no file in the program's folder
        gc.freeze()  # an iterator of the parent's that is collected here would stop the parent's workers
        forget_handlers()
        stand_back(origin.parent, origin.main_thread, only_idle=False)
        own_files((telling, orders))
        cut_off((telling, orders))
        write_nothing()
        listening = os.fdopen(orders, "rb", closefd=False)
        while True:
            pid = os.fork()
            if pid == 0:
                return _begin(way, telling, fork_server, origin)
            _, status = os.waitpid(pid, 0)
            if status:
                failed = f"the step ended its process (signal {os.WTERMSIG(status)})"
                os.write(telling, b"\n" + json.dumps([asdict(way), None, failed]).encode() + b"\n")
            line = listening.readline()
            if not line:
                break
            way = Repetition(**json.loads(line))
    finally:
        if os.getpid() == fork_server:
            os._exit(0)
    raise AssertionError("not reached")


def _begin(way: Repetition, telling: int, fork_server: int, origin: _Origin) -> Copy:
    copy = Copy(way, telling)
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)  # first: what follows may find a lock taken (the dynamic linker's, say)
        end_with_parent(signal.SIGKILL)
        if os.getppid() != fork_server:
            os._exit(0)
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
        origin.chance.restore()  # Python has seeded its generator anew
        copy.stop_effects()
    except BaseException:
        os._exit(0)
    return copy
