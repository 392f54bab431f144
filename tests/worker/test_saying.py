"""What Overdrive says stands in a line of its own."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from overdrive.worker.saying import announce, say


def test_without_progress_bars_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    announce("compile", "there is no compiler")
    assert capsys.readouterr().err == "overdrive: left out compile: there is no compiler\n"


def test_it_does_not_stand_behind_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    output = io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    with tqdm(total=10, file=output, miniters=1, mininterval=0) as bar:
        bar.update(3)
        assert "3/10" in output.getvalue()
        say("it is so")
    # A terminal shows what follows the last return of the carriage.
    lines = [each.rpartition("\r")[2] for each in output.getvalue().split("\n")]
    assert "overdrive: it is so" in lines and "10 [" in lines[-2 if not lines[-1] else -1]


def test_another_library_by_the_name_of_tqdm_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=SimpleNamespace(_instances=[1])))
    say("it is so")
    assert capsys.readouterr().err == "overdrive: it is so\n"
