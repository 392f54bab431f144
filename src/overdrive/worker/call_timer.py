"""How long each call of a model takes, in a program that trains nothing: from when it is called to its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from overdrive.seams.hub import Seams


@dataclass(frozen=True)
class Taken:
    """Seconds of each call; `usual`: without those that took the time of two, as few in a long run do (see
    `Seams.call_doubled`)."""

    seconds: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()


class CallTimer:
    """What lies between two calls is no part of it. Calls of several threads are timed each by itself."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        """`synchronize`: waits for the device, without which a GPU's answer is only promised."""
        self._synchronize = synchronize
        self._began: dict[int, float] = {}  # by thread
        self._doubled: set[int] = set()  # threads whose call under way takes the time of two
        self._seconds: list[float] = []
        self._usual: list[float] = []

    def watch(self, seams: Seams) -> None:
        """Before other observers subscribe: what they do at the end of a call is not the call's."""
        seams.step_begins.subscribe(self._begins)
        seams.step_ends.subscribe(self._ends)
        seams.call_doubled.subscribe(lambda: self._doubled.add(threading.get_ident()))

    def taken(self) -> Taken:
        """Of the calls since it was asked last."""
        found = Taken(tuple(self._seconds), tuple(self._usual))
        self._seconds, self._usual = [], []
        return found

    def _begins(self, model: Any) -> None:
        thread = threading.get_ident()
        self._doubled.discard(thread)
        self._began[thread] = time.perf_counter()

    def _ends(self, model: Any) -> None:
        thread = threading.get_ident()
        began = self._began.pop(thread, None)
        if began is None:
            return
        self._synchronize()
        self._seconds.append(time.perf_counter() - began)
        if thread not in self._doubled:
            self._usual.append(self._seconds[-1])
