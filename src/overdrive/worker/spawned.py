"""Processes that the program starts anew (multiprocessing's spawn and forkserver), in which nothing of ours is.

A program that trains in such processes only waits for them: of its steps none is ever seen. So each of them is sent
with its work what tells, at the first step of an optimizer there.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import wraps
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import Any

from overdrive.seams.arrival import Arrival


class Telling:
    """What such a process is to do, and where it tells of its first step."""

    def __init__(self, work: Callable[..., Any], pipe: int, line: bytes) -> None:
        self.work, self._pipe, self._line = work, pipe, line

    def __reduce__(self) -> Any:
        """While a process is started: it is given a descriptor of its own."""
        return _received, (self.work, DupFd(self._pipe), self._line)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        Arrival("torch", self._watch).watch()
        return self.work(*args, **kwargs)

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # whatever is wrong with us is no matter of the program's
            optimizers: Any = sys.modules["torch.optim.optimizer"]

            def tell(*_: Any) -> None:
                handle.remove()
                with contextlib.suppress(OSError):  # nobody listens any more
                    os.write(self._pipe, self._line)

            handle = optimizers.register_optimizer_step_post_hook(tell)


def _received(work: Callable[..., Any], descriptor: Any, line: bytes) -> Telling:
    return Telling(work, descriptor.detach(), line)


@contextlib.contextmanager
def told_of_steps(pipe: int, line: bytes, wanted: Callable[[], bool]) -> Any:
    """
    Args:
        line: what is written to the pipe at the first step of such a process.
        wanted: whether a process that is started now is to tell.
    """
    plain = BaseProcess.start

    @wraps(plain)
    def start(self: Any) -> None:
        method = getattr(self, "_start_method", None) or multiprocessing.get_start_method()
        work = getattr(self, "_target", None)
        if method == "fork" or work is None or not wanted():
            plain(self)
            return
        self._target = Telling(work, pipe, line)
        try:
            plain(self)
        except BaseException:
            self._target = work
            raise

    BaseProcess.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseProcess.start = plain  # type: ignore[method-assign]
