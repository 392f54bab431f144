"""Which paths a call is about to change, as an audit event tells of it."""

from __future__ import annotations

import os
import posix
from collections.abc import Iterator
from typing import Any

from overdrive.sandbox.redirect import WRITES

_HANDLES = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2}  # where a folder's handle stands among the arguments


def place_of(path: str) -> str:
    """Absolute; the last name may be a link."""
    head, tail = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(head), tail)


def changed_paths(event: str, args: tuple[Any, ...]) -> Iterator[Any]:
    """Of one of `WRITES`. Where a folder is renamed, also what all that is in it will be called."""
    paths = [_within(event, args, position) for position in WRITES[event]]
    yield from paths
    if event == "os.rename":
        source, target = map(os.fsdecode, paths)
        if not os.path.islink(source):
            for folder, folders, files in os.walk(source):
                below = os.path.join(target, os.path.relpath(folder, source))
                yield from (os.path.join(below, name) for name in (*folders, *files))


def _within(event: str, args: tuple[Any, ...], position: int) -> Any:
    """The path at this place of the arguments, which may be within a folder given by its handle."""
    path = args[position]
    place = position + 2 if event == "os.rename" else _HANDLES.get(event)
    handle = args[place] if place is not None and place < len(args) else -1
    if isinstance(handle, int) and handle >= 0 and not isinstance(path, int) and not os.path.isabs(os.fsdecode(path)):
        return os.path.join(posix.readlink(f"/proc/self/fd/{handle}"), os.fsdecode(path))
    return path
