"""Warnings that the program's user is not to see: ours, and those that tell us something."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def silenced() -> Iterator[None]:
    """No warning is shown inside.

    `warnings.catch_warnings` and `simplefilter` would have Python forget which of the program's own warnings were shown
    already, so that those come once more. A filter put into the list by hand does not.
    """
    with _ignored(None):
        yield


@contextmanager
def overheard(words: str) -> Iterator[list[str]]:
    """Warnings with these words, of all threads, go into the list inside instead of being shown."""
    ears = _Ears(words)
    with _ignored(ears):
        yield ears.heard


class _Ears:
    """Stands where a filter has the pattern of its messages."""

    def __init__(self, words: str) -> None:
        self._words = words
        self.heard: list[str] = []

    def match(self, message: str) -> bool:
        if self._words not in message:
            return False
        self.heard.append(message)
        return True


@contextmanager
def _ignored(pattern: Any) -> Iterator[None]:
    filters: Any = warnings.filters
    ours = ("ignore", pattern, Warning, None, 0)
    filters.insert(0, ours)
    try:
        yield
    finally:
        with suppress(ValueError):  # somebody has emptied the list
            filters.remove(ours)
