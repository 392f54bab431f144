"""OpenMP across a fork: its threads do not live on in a forked process, where a parallel region would wait for them.

Told to pause, it ends the threads of the calling thread's team, and both processes begin new ones where they need them
(0.1 ms), as many as before: a step made by one thread would come to other bits. Source: OpenMP 5.0, 3.2.43.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_HARD = 2  # omp_pause_hard: no state of a team is kept


def pause() -> None:
    """For the calling thread, which is in no parallel region."""
    for library in libraries():
        threads = library.omp_get_max_threads()
        library.omp_pause_resource_all(_HARD)
        if library.omp_get_max_threads() != threads:  # LLVM's begins anew from the environment
            library.omp_set_num_threads(threads)


@cache
def libraries() -> tuple[Any, ...]:
    """Those that are loaded: PyTorch's own, and perhaps one that another package brings."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "omp" in line}
    found = []
    for path in sorted(paths):
        name = path.rpartition("/")[2]
        if not name.startswith(("libgomp", "libomp", "libiomp")):
            continue
        try:
            library = ctypes.CDLL(path)
            library.omp_pause_resource_all.restype = ctypes.c_int
        except (OSError, AttributeError):  # too old a one: forked steps then hang, and say nothing
            continue
        found.append(library)
    return tuple(found)
