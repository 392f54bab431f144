"""What was printed so far is written, whatever stands in the place of the streams."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from overdrive.core.streams import flush, flush_files


def test_a_stream_that_cannot_be_flushed_keeps_the_other_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    below = io.BytesIO()
    errors = io.TextIOWrapper(io.BufferedWriter(below))  # type: ignore[arg-type]
    errors.write("told")
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed, object()):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", errors)
        flush()
        monkeypatch.undo()
        assert below.getvalue() == b"told"


def test_what_lies_in_the_buffers_of_open_files_is_written(tmp_path: Path) -> None:
    """But for those that are closed, and pipes, whose reader may read no more."""
    with open(tmp_path / "gone.csv", "w") as gone:
        pass
    read, write = os.pipe()
    with open(tmp_path / "log.csv", "w") as ours, open(read, "rb"), open(write, "wb") as pipe:
        assert gone.closed
        ours.write("1,2")
        pipe.write(b"told")
        flush_files()
        assert (tmp_path / "log.csv").read_text() == "1,2"
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 4)
