"""Whether a snapshot can be gone on from, as far as it is known before the program starts.

What it says of files is written into the user's own at its step: no others than the run has written, and each content
as it was kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overdrive.survive.before import Before, is_state
from overdrive.survive.contents import CONTENTS, Contents
from overdrive.survive.journal import Damaged, Journal


def check(header: dict[str, Any], path: Path, journal: Journal) -> None:
    """Reads its part of the journal as well.

    Args:
        header: the snapshot's.
        path: where it was read, in the run's folder.

    Raises:
        Damaged: it cannot be; the message says why.
    """
    try:
        journal.read(header["journal"]["bytes"], header["journal"]["sha256"])
        _numbers(header["printed"])
        _, _, _ = header["fetching"]
        _check_files(header, path)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise Damaged(f"{path.name} is no snapshot") from None


def _check_files(header: dict[str, Any], path: Path) -> None:
    before, contents = Before(path.parent).read(), Contents(path.parent / CONTENTS)
    states, positions = header["files"], header["positions"]
    for written in [*states, *(each[0] for each in positions)]:
        if written not in before:
            raise Damaged(f"{path.name} names {written!r}, which the run has not written")
    for _, *place in positions:
        _numbers(place)
    for written, state in states.items():
        if not is_state(state):
            raise TypeError(state)
        if state[0] == "file":
            try:
                contents.check(state[1], written)
            except Damaged as error:
                raise type(error)(f"of {path.name}, {error}") from None


def _numbers(told: Any) -> None:
    one, other = told
    if type(one) is not int or type(other) is not int or min(one, other) < 0:
        raise TypeError(told)
