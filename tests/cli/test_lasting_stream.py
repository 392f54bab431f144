"""What becomes of a command whose standard output is gone, or has not all characters."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from overdrive.cli.json_output import STDOUT, console_beside
from overdrive.cli.lasting_stream import LastingStream
from overdrive.report.live import Live


def test_a_pipe_that_nobody_reads_is_told_of_once_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as pipe:
        stream = LastingStream(pipe)
        stream.write("read\n")
        stream.flush()
        assert os.read(reader, 100) == b"read\n" and not stream.isatty()
        os.close(reader)
        for _ in range(3):
            stream.write("lost\n")
            stream.flush()  # and as it is closed, where Python would try once more
    assert capsys.readouterr().err == "overdrive: standard output is lost (Broken pipe); the command goes on\n"


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("json_path", [None, STDOUT])
def test_what_a_terminal_has_no_character_for_is_a_question_mark(
    lasts: bool, json_path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LANG=en_US (Latin-1) on a terminal, a tune ended with a defect as it drew its first picture."""
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stderr" if json_path else "sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    with Live(console_beside(json_path, lasts, force_terminal=True, no_color=True), 60.0) as told:
        told.stage("control")
        told.outcome("caf\xe9 \u2192 caf\udce9")
    assert b"caf\xe9 ? caf?" in raw.getvalue()
