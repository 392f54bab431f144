"""What a fork costs a program after it: each page of memory that it writes to is copied, or taken back, first."""

from __future__ import annotations

import resource

# Seconds of processor time for a page of 4 KiB: 2.6 µs in a virtual machine while the forked process lives, 0.9 after.
_A_PAGE = 2.6e-6


class CopiedPages:
    """Counts page faults over two steps of the program, the first after a fork and the next: what the first has more.

    Args:
        looks: there are before the first step, which do not count.
    """

    def __init__(self, looks: int = 0) -> None:
        self._looks = looks
        self._marks = [_faults()]

    def look(self) -> float | None:
        """Before each batch: the seconds that they took, once that is known."""
        if self._looks:
            self._looks -= 1
            return None
        self._marks.append(_faults())
        if len(self._marks) < 3:
            return None
        first, second, third = self._marks
        return max(0, (second - first) - (third - second)) * _A_PAGE


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
