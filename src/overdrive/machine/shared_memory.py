"""The shared memory through which data workers hand over their batches (/dev/shm)."""

from __future__ import annotations

import os

PLACE = "/dev/shm"
# Of what is free: other programs write there too, and a full place ends a worker with a bus error.
USABLE_SHARE = 0.8
# Batches of a loader that lie there besides those being made ahead: the one in the program's hands and
# the one that is just being handed over.
BESIDES = 2


def free_shared_memory(place: str = PLACE) -> int | None:
    """Bytes that can still be written there; None where there is no such place to look at."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def fitting(workers: int, prefetch: int, batch_bytes: int, free: int) -> tuple[int, int]:
    """The workers, and batches ahead of each, that fit: first less prefetch, then fewer workers; (0, 0) if none."""
    room = int(USABLE_SHARE * free / max(1, batch_bytes)) - BESIDES
    workers = max(0, min(workers, room))
    return (workers, min(prefetch, room // workers)) if workers else (0, 0)


def needed(workers: int, prefetch: int, batch_bytes: int) -> int:
    """Bytes that a loader's batches may take there at once."""
    return (workers * prefetch + BESIDES) * batch_bytes if workers else 0
