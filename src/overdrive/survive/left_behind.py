"""What a run had written, before it is begun from its start again: kept in its folder.

Its files become what they were before it. A checkpoint of many hours would be gone with that, of which nobody has
another copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from overdrive.seams.points import reason_of
from overdrive.survive.file_states import State
from overdrive.survive.files import Files
from overdrive.survive.folder import LEFT, Unusable
from overdrive.survive.journal import Damaged


def put_back(files: Files, folder: Path, say: Callable[[str], None] | None) -> None:
    """As they were before the run.

    Args:
        say: is told what is kept of them; None: another process keeps it, and here it only looks as if they were so.

    Raises:
        Unusable: they cannot be made so; nothing was lost.
    """
    try:
        files.check({})  # before anything is moved
        if say and (told := set_aside(files, folder)):
            say(told)
        files.put_back({})
    except Damaged as error:
        told = f"the files cannot be made what they were before this run, as {error}"
        raise Unusable(f"{told}: --fresh begins it anew, with the files as they are") from None
    except OSError as error:
        told = f"the files cannot be made what they were before this run ({reason_of(error)})"
        raise Unusable(f"{told}: make room, or begin it anew with --fresh, with the files as they are") from None


def set_aside(files: Files, folder: Path) -> str:
    """Whatever is there and will not be, where the files are made what they were before the run. It lies there by its
    whole path.

    Returns:
        What was kept, and where, for people; "" where there was nothing.

    Raises:
        OSError: it cannot be kept; nothing was lost.
    """
    kept: list[str] = []
    into: Path | None = None
    for path, before in files.before.items():
        if _is_lost(files, path, before):
            into = into or _made(folder)
            _take(path, f"{into}{path}", stays=before[0] == "file")
            kept.append(path)
    if not kept:
        return ""
    more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
    return f"what it had written ({kept[0]}{more}) lies in {into}"


def _is_lost(files: Files, path: str, before: State) -> bool:
    """Folders are removed only where they are empty, and what is neither file nor link holds nothing."""
    if os.path.islink(path):
        return before != ["link", os.readlink(path)]
    return os.path.isfile(path) and not files.is_still(path, before)


def _take(path: str, target: str, stays: bool) -> None:
    """`stays`: as it is put back, who has it open goes on to see it."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        if stays:
            shutil.copy2(path, target, follow_symlinks=False)
        else:
            shutil.move(path, target)
    except OSError:
        if os.path.lexists(path) and os.path.lexists(target):  # half a copy, where the disk is full
            os.unlink(target)
        raise


def _made(folder: Path) -> Path:
    number = 1
    while True:
        place = folder / f"{LEFT}{number}"
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return place
