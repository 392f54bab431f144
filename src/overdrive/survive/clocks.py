"""The times that a program's own lines read: the same again when the run is made again."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from overdrive.survive.ours import is_library_file

_NAMES = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")


def tell(read: Callable[[Callable[[], Any]], Any]) -> None:
    """From here on `read(plain)` answers where a line of the program's asks for the time. For good."""
    for name in _NAMES:
        setattr(time, name, _told(getattr(time, name), read))


def _told(plain: Callable[[], Any], read: Callable[[Callable[[], Any]], Any]) -> Callable[[], Any]:
    known: dict[str, bool] = {}

    @functools.wraps(plain)
    def told() -> Any:
        file = sys._getframe(1).f_code.co_filename
        library = known.get(file)
        if library is None:
            library = known[file] = is_library_file(file)
        return plain() if library else read(plain)

    return told
