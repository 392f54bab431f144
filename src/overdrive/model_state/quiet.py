"""Keeps what a call made again would print, or tell a logger, from being said twice."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet(loggers: Iterable[logging.Logger] = ()) -> Iterator[list[str]]:
    """What this thread writes to `sys.stdout` and `sys.stderr`, and tells these loggers, goes into the list instead."""
    said: list[str] = []
    thread = threading.get_ident()
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Stream(each, thread, said) for each in streams)
    quieted = [each for each in loggers if "handle" not in vars(each)]
    for each in quieted:
        vars(each)["handle"] = _handler(each, thread, said)
    try:
        yield said
    finally:
        for each in quieted:
            vars(each).pop("handle", None)
        sys.stdout, sys.stderr = streams


class _Stream:
    def __init__(self, stream: Any, thread: int, said: list[str]) -> None:
        self._stream, self._thread, self._said = stream, thread, said

    def write(self, text: str) -> Any:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self._said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _handler(logger: logging.Logger, thread: int, said: list[str]) -> Any:
    def handle(record: logging.LogRecord) -> None:
        if threading.get_ident() != thread:
            logging.Logger.handle(logger, record)
        else:
            said.append(record.getMessage())

    return handle
