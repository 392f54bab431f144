"""Whether a technique is on, for this process and for those that it has forked: a loader's workers, say."""

from __future__ import annotations

import mmap


class SharedFlag:
    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)
        self.on()

    def on(self) -> None:
        self._byte[0] = 1

    def off(self) -> None:
        self._byte[0] = 0

    def __bool__(self) -> bool:
        return self._byte[0] == 1
