"""What was printed so far is written, whatever stands in the place of the streams."""

from __future__ import annotations

import io
import sys

import pytest

from overdrive.core.streams import flush


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
