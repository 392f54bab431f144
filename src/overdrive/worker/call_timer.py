"""How long each call of a model takes, in a program that trains nothing: from when it is called to its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams


class CallTimer:
    """What lies between two calls is no part of it. Calls of several threads are timed each by itself."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        """`synchronize`: waits for the device, without which a GPU's answer is only promised."""
        self._synchronize = synchronize
        self._began: dict[int, float] = {}  # by thread
        self._seconds: list[float] = []

    def watch(self, seams: Seams) -> None:
        """Before other observers subscribe: what they do at the end of a call is not the call's."""
        seams.step_begins.subscribe(self._begins)
        seams.step_ends.subscribe(self._ends)

    def taken(self) -> tuple[float, ...]:
        """Seconds of each call since it was asked last."""
        found, self._seconds = self._seconds, []
        return tuple(found)

    def _begins(self, model: Any) -> None:
        self._began[threading.get_ident()] = time.perf_counter()

    def _ends(self, model: Any) -> None:
        began = self._began.pop(threading.get_ident(), None)
        if began is not None:
            self._synchronize()
            self._seconds.append(time.perf_counter() - began)
