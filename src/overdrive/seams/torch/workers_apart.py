"""Loaders' workers that a signal to this process's group does not come to.

They would die first, and their death is an error in the middle of what this process has still to do. When it is gone
they end by themselves: they look every five seconds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from overdrive.seams.patch import Patches


def set_workers_apart() -> Callable[[], None]:
    """From here on each is a group of its own, whoever opens the loader; returns what undoes it."""
    make: Any = _MultiProcessingDataLoaderIter.__init__

    @functools.wraps(make)
    def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:
        make(iterator, *args, **kwargs)
        for worker in iterator._workers:
            with suppress(OSError):  # it runs another program by now, as those that are spawned do
                os.setpgid(worker.pid, worker.pid)

    patches = Patches()
    patches.replace(_MultiProcessingDataLoaderIter, "__init__", __init__)
    return patches.restore
