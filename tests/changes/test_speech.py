"""Data sets that log: what they log is no part of a sample, but whether they do counts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from overdrive.changes.fingerprint import Fingerprint, fingerprint

ABOVE = logging.getLogger("overdrive-test-of-speech")
LOGGER = logging.getLogger("overdrive-test-of-speech.data")


class Logs:
    """As many data sets: it warns of what cannot be read."""

    def __getitem__(self, index: int) -> int:
        LOGGER.debug("sample %d", index)
        return index


class Holds:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getitem__(self, index: int) -> int:
        return index


@contextmanager
def looked_at() -> Iterator[Fingerprint]:
    """In a test, not before it: pytest adds handlers to loggers that keep their records to themselves."""
    ABOVE.addHandler(logging.StreamHandler(sys.stderr))
    ABOVE.propagate = False  # pytest's own handlers stand above it
    found = fingerprint(Logs())
    found.watch.seal()
    try:
        yield found
    finally:
        for each in (ABOVE, LOGGER):
            each.handlers.clear()
            each.setLevel(logging.NOTSET)
        ABOVE.propagate = LOGGER.propagate = True
        LOGGER.disabled = False
        logging.disable(logging.NOTSET)


def test_a_logger_hides_nothing_and_its_use_by_others_is_no_change() -> None:
    with looked_at() as seen:
        assert not seen.hidden and not seen.open_file and not seen.written_file and seen.may_speak
        LOGGER.debug("silent")
        ABOVE.error("heard")
        logging.getLogger("overdrive-test-of-speech.another").warning("made late")
        assert not seen.watch.changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda: LOGGER.setLevel(logging.DEBUG),
        lambda: ABOVE.setLevel(logging.DEBUG),
        lambda: ABOVE.handlers[0].setLevel(logging.ERROR),
        lambda: LOGGER.addHandler(logging.NullHandler()),
        lambda: logging.disable(logging.INFO),
        lambda: setattr(LOGGER, "propagate", False),
        lambda: setattr(LOGGER, "disabled", True),
    ],
)
def test_whether_it_speaks_counts(change: Callable[[], Any]) -> None:
    with looked_at() as seen:
        assert not seen.watch.changed()
        change()
        assert seen.watch.changed()
        assert fingerprint(Logs()).of_objects != seen.of_objects


def test_where_it_speaks_to_is_told(tmp_path: Path) -> None:
    with looked_at():
        LOGGER.addHandler(file := logging.FileHandler(tmp_path / "log.txt", delay=True))
        found = fingerprint(Logs())
        assert found.written_file and not found.open_file and not found.hidden
        file.close()


def test_output_is_no_file() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        found = fingerprint(Holds(stream))
        assert not found.open_file and not found.written_file and not found.hidden
