"""What a call writes to standard output and error, so that a second call does not write it again."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

_ABSENT = object()


class _Tap:
    """Takes the place of a stream's `write`, on the stream itself: it stays the same object for who compares or holds
    it. All is handed on at once."""

    __slots__ = ("_again", "_before", "_plain", "_thread", "_written", "stream")

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._before = vars(stream).get("write", _ABSENT)
        self._plain = stream.write
        self._thread = get_ident()
        self._written: list[str] = []
        self._again = ""  # what was written by the first call and is still to come in the second

    def __call__(self, text: Any) -> Any:
        if get_ident() != self._thread:
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

    def expect_again(self) -> None:
        self._again, self._written = "".join(self._written), []

    def remove(self) -> None:
        if self._before is _ABSENT:
            vars(self.stream).pop("write", None)
        else:
            self.stream.write = self._before


class Written:
    """Notes what this thread writes, from now until `over`."""

    def __init__(self) -> None:
        self._taps: list[_Tap] = []
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "__dict__") and all(tap.stream is not stream for tap in self._taps):
                tap = _Tap(stream)
                stream.write = tap  # type: ignore[method-assign]
                self._taps.append(tap)

    def expect_again(self) -> None:
        """The call is made a second time: what it wrote is not written again."""
        for tap in self._taps:
            tap.expect_again()

    def over(self) -> None:
        for tap in self._taps:
            tap.remove()
