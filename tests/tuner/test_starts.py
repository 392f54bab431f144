"""How long the user's own commands take until his code begins is found with a script that does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.core import scratch
from overdrive.machine import command
from overdrive.tuner import starts
from overdrive.tuner.starts import starts_under


def test_both_commands_are_timed_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`allocator` sets variables of the process, for which `overdrive run` starts itself again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scratch.tempfile, "mkdtemp", lambda prefix: str(_made(tmp_path / prefix)))
    asked: list[list[str]] = []

    def ask(words: list[str], wait: float) -> str | None:
        asked.append(words)
        return command.ask(words, wait)

    monkeypatch.setattr(starts, "ask", ask)
    found = starts_under([("allocator", {}), ("channels_last", {})])
    assert found and found.before > 0 and found.after > 0
    assert len(asked) == 6 and len(asked[0]) == 2 and asked[1][1:4] == ["-m", "overdrive", "run"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("told", [None, "", "a warning\n"])
def test_a_command_that_does_not_tell_leaves_the_start_unknown(
    told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "ask", lambda words, wait: told if "overdrive" in words else "1e9")
    assert starts_under([("channels_last", {})]) is None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
