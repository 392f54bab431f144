"""What is asked while samples are fetched, under a plan that keeps samples.

Which samples are fetched and which come from what is kept may be another the second time: what a fetch asked is one
entry of the journal, which is passed over where that fetch is not made, and a fetch that was not made the first time is
answered by its own tensors. Those hold the right numbers: what is kept is kept only of fetches that just read.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from overdrive.survive.journal import FETCH, Entry, Journal


class FetchQuestions:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._number = 0  # of the fetch that asked last
        self._entries: list[Entry] = []

    def note(self, *entry: Any) -> bool:
        """Whether a fetch is under way, to which it now belongs."""
        if (fetch := _current()) is None:
            return False
        if fetch[0] != self._number:
            self._number, self._entries = fetch[0], []
            self._journal.add(FETCH, _key(fetch[1]), self._entries)
        self._entries.append(list(entry))
        return True

    def answer(self, kind: str) -> tuple[bool, Entry | None]:
        """Whether a fetch is under way, and what it was told then; None where it is to be told by its own tensors."""
        if (fetch := _current()) is None:
            return False, None
        if fetch[0] != self._number:
            self._number, self._entries = fetch[0], self._journal.fetch(_key(fetch[1]))
        if self._entries and self._entries[0][0] == kind:
            return True, self._entries.pop(0)
        self._entries = []
        return True, None


def _key(indices: Any) -> str:
    """Of a batch, which may be of thousands."""
    return hashlib.sha256(repr(indices).encode(errors="replace")).hexdigest()[:16]


def _current() -> tuple[int, Any] | None:
    if "torch" not in sys.modules:  # its lines ask for the time before
        return None
    from overdrive.seams.torch import fetches

    return fetches.current()
