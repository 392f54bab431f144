"""Wraps the callables that a data set holds, to time what it calls its transform.

For a forked process only: the data set is changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

from overdrive.core.whose import is_library
from overdrive.datacache.cost.fetching import Fetching, standing_files
from overdrive.datacache.opened import Opened

_MOST_HELD = 64  # objects that are searched for callables


class DataFiles(Opened):
    """Data files that also count how often one is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        super().hear(event, arguments)
        path = arguments[0] if event == "open" else None
        if isinstance(path, (str, bytes)) and not is_library(os.fsdecode(path)):
            self.count += 1

    def paths_of_data(self) -> list[str]:
        """The data files that were opened, else those that are open all the time."""
        return sorted(path for path in self.paths() if not path.endswith(os.sep)) or standing_files()


class _Clock:
    """What all stand-ins of one examination share."""

    def __init__(self, files: DataFiles) -> None:
        self.files = files
        self.running = False  # within one of them: what it calls is in its time already


class _Timed:
    """Stands in for a callable that a data set holds, and takes the time of its calls."""

    def __init__(self, real: Any, clock: _Clock) -> None:
        self._real = real
        self._clock = clock
        self.overdrive_seconds = 0.0
        self.overdrive_opens = False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for `isinstance`
        return type(self._real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        clock = self._clock
        if clock.running:
            return self._real(*args, **kwargs)
        clock.running = True
        opened, began = clock.files.count, time.perf_counter()
        try:
            return self._real(*args, **kwargs)
        finally:
            self.overdrive_seconds += time.perf_counter() - began
            self.overdrive_opens |= clock.files.count > opened
            clock.running = False


def transforming(fetching: Fetching, batches: list[list[Any]], files: DataFiles) -> float:
    """The share of fetching that the data set's held callables take; 0 where they bear no standing in for."""
    clock = _Clock(files)
    stands = [_stand_in(*place, clock) for place in list(_held_callables(fetching.dataset))]
    try:
        with files:
            for indices in batches[:1]:
                fetching.items(indices[:1])  # finds out which of them open files
            for each in stands:
                each.overdrive_seconds = 0.0
            began = time.perf_counter()
            for indices in batches:
                fetching.items(indices)
            whole = time.perf_counter() - began
    except Exception:
        return 0.0
    return min(1.0, sum(each.overdrive_seconds for each in stands if not each.overdrive_opens) / whole)


def _stand_in(holder: Any, key: Any, real: Any, clock: _Clock) -> _Timed:
    holder[key] = stand = _Timed(real, clock)
    return stand


def _held_callables(dataset: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(holder, key, callable) of the attributes of a data set and of those inside it, and of their lists."""
    waiting, seen = [dataset], 0
    while waiting and seen < _MOST_HELD:
        seen += 1
        space = getattr(waiting.pop(0), "__dict__", {})
        lists = [each for each in space.values() if isinstance(each, (list, dict)) and len(each) <= _MOST_HELD]
        pairs = [(space, key, value) for key, value in space.items()]
        for each in lists:
            pairs += [
                (each, key, value) for key, value in (each.items() if isinstance(each, dict) else enumerate(each))
            ]
        tuples = [each for each in space.values() if isinstance(each, tuple) and len(each) <= _MOST_HELD]
        for holder, key, value in pairs:
            if callable(value) and not isinstance(value, type):
                yield holder, key, value
        for value in chain((value for _, _, value in pairs), *tuples):
            if hasattr(type(value), "__getitem__") and hasattr(value, "__dict__") and not callable(value):
                waiting.append(value)
