"""What a call writes to standard output and error, so that a second call does not write it again."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

_ABSENT = object()


class _Tap:
    """Takes the place of a stream's `write`, on the stream itself: it stays the same object for who compares or holds
    it. All is handed on at once."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.on = self._placed = False
        self._own: dict[str, Any] = vars(stream)
        self._before: Any = _ABSENT
        self._plain: Any = None
        self._thread = 0
        self._written: list[str] = []
        self._again = ""  # what was written by the first call and is still to come in the second

    def __call__(self, text: Any) -> Any:
        if not self.on or get_ident() != self._thread:
            return self._plain(text)
        if self._again:
            if self._again.startswith(text):
                self._again = self._again[len(text) :]
                return len(text)
            known, self._again = self._again, ""
            if text.startswith(known):
                self._plain(text[len(known) :])
                return len(text)
        self._written.append(text)
        return self._plain(text)

    def place(self) -> None:
        self.on, self._thread = True, get_ident()
        before = self._own.get("write", _ABSENT)
        if isinstance(before, _Tap):
            # Another thread's call is under way. Were this one placed above it, the two would hand on to each other as
            # soon as these calls end in another order than they began, and whoever prints would have a RecursionError
            # from then on. So nothing is noted of this call.
            return
        self._before = before
        self._plain = self.stream.write
        self._own["write"] = self
        self._placed = True

    def expect_again(self) -> None:
        self._again, self._written = "".join(self._written), []

    def remove(self) -> bool:
        """Whether it is gone. Where the program has put another there meanwhile, that one hands on to this for good: it
        is never to be placed again, above what leads to it."""
        self.on = False
        if self._written:
            self._written = []
        self._again = ""
        if self._own.get("write") is not self:
            return not self._placed
        self._placed = False
        if self._before is _ABSENT:
            del self._own["write"]
        else:
            self._own["write"] = self._before
        return True


class Written:
    """Notes what this thread writes, in calls that follow one another."""

    def __init__(self) -> None:
        self._streams: tuple[Any, Any] = (None, None)
        self._taps: list[_Tap] = []

    def begin(self) -> None:
        if self._streams[0] is not sys.stdout or self._streams[1] is not sys.stderr:
            self._streams = sys.stdout, sys.stderr
            distinct = {id(each): each for each in self._streams if hasattr(each, "__dict__")}
            self._taps = [_Tap(each) for each in distinct.values()]
        for tap in self._taps:
            tap.place()

    def expect_again(self) -> None:
        """The call is made a second time: what it wrote is not written again."""
        for tap in self._taps:
            tap.expect_again()

    def over(self) -> None:
        self._taps = [tap if tap.remove() else _Tap(tap.stream) for tap in self._taps]
