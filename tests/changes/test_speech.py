"""Data sets that log: what they log is no part of a sample, but whether they do counts."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
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


@pytest.fixture
def seen() -> Iterator[Fingerprint]:
    handler = logging.StreamHandler(io.StringIO())
    ABOVE.addHandler(handler)
    found = fingerprint(Logs())
    found.watch.seal()
    yield found
    for each in (ABOVE, LOGGER):
        each.handlers.clear()
        each.setLevel(logging.NOTSET)
    LOGGER.propagate, LOGGER.disabled = True, False
    logging.disable(logging.NOTSET)


def test_a_logger_hides_nothing_and_its_use_by_others_is_no_change(seen: Fingerprint) -> None:
    assert not seen.hidden and not seen.open_file and seen.may_speak
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
def test_whether_it_speaks_counts(seen: Fingerprint, change: Callable[[], Any]) -> None:
    assert not seen.watch.changed()
    change()
    assert seen.watch.changed()
    assert fingerprint(Logs()).of_objects != seen.of_objects


def test_a_stream_that_is_only_written_to_is_no_open_file(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w") as written:
        assert not fingerprint(Holds(written)).open_file and not fingerprint(Holds(written)).hidden
    with (tmp_path / "log.txt").open() as read, (tmp_path / "log.txt").open("r+") as both:
        assert fingerprint(Holds(read)).open_file and fingerprint(Holds(both)).open_file
