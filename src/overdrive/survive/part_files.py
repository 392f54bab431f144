"""Snapshots of which each rank has a file: which of them is gone on from, seen by each rank for itself.

Rank 0's file is given its name last, when all others have theirs: where it is, all were there. Each rank reads its own
file alone, since all together may be more than one machine reads in an hour. One that finds its file damaged deletes
it, and all begin again: then all find the snapshot incomplete.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from overdrive.survive import restorable, snapshot
from overdrive.survive.folder import Unusable
from overdrive.survive.journal import Damaged, Journal, Unreadable, not_read
from overdrive.survive.snapshot import Snapshot, part_path


class Gone(Exception):
    """This rank's file was damaged, and is deleted; the message says which, and how."""


def newest_whole(folder: Path, rank: int, ranks: int, journal: Journal, say: Callable[[str], None]) -> Snapshot | None:
    """The newest that can be gone on from, whose part of the journal was read; others are told of.

    Raises:
        Gone: this rank has had another file of it than was written.
        Unusable: this rank cannot read its own just now.
        OSError: and it cannot be deleted.
    """
    for step in snapshot.steps_of(folder):
        own = part_path(folder, step, rank)
        try:
            if (missing := _missing(folder, step, ranks)) is not None:
                say(f"{missing.name} is not there; an older snapshot is taken")
                continue
            found = _read(own, step, rank, ranks)
            restorable.check(found.header, own, journal)
            return found
        except Unreadable as error:
            again = "give the same command again when it can be, or begin anew with --fresh"
            raise Unusable(f"{error}. Nothing is deleted: {again}") from None
        except Damaged as error:
            own.unlink(missing_ok=True)
            raise Gone(str(error)) from None
    return None


def _missing(folder: Path, step: int, ranks: int) -> Path | None:
    """The file that a rank above 0 has not written.

    Raises:
        Unreadable: that cannot be seen.
    """
    try:
        return next((path for each in range(1, ranks) if not (path := part_path(folder, step, each)).exists()), None)
    except OSError as error:
        raise not_read(folder.name, error) from None


def _read(path: Path, step: int, rank: int, ranks: int) -> Snapshot:
    """
    Raises:
        Damaged: it is not what this rank of so many has written at this step.
    """
    found = snapshot.read(path)
    then = [found.header.get(name) for name in ("step", "rank", "ranks")]
    if then != [step, rank, ranks]:
        raise Damaged(f"{path.name} is of step {then[0]} and of rank {then[1]} of {then[2]}")
    return found
