"""Who else uses this machine: what makes a tune's numbers less certain is said in its report."""

from __future__ import annotations

from overdrive.core.objective import size
from overdrive.machine.cpu import busy_share
from overdrive.machine.gpu import memory_in_use

# One other busy program on two cores has been seen to slow parallel operations tenfold, at random.
_BUSY = 0.2
_SHARED_GPU = 1 << 30  # bytes; a driver's own context takes half of that


def neighbours() -> list[str]:
    """A sentence for each kind of neighbour."""
    notes = []
    busy = busy_share()
    if busy > _BUSY:
        notes.append(
            f"Other programs were using {busy:.0%} of the cores when the tune began, which makes intervals wide."
        )
    taken = memory_in_use()
    if taken > _SHARED_GPU:
        notes.append(f"Other processes held {size(taken)} of a GPU's memory when the tune began.")
    return notes
