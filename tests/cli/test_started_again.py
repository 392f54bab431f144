"""A command that starts itself again, from within the program that it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from overdrive.cli.started_again import Start


def test_it_begins_as_it_began_whatever_the_program_has_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the script's own options, and without those of ours that were done with."""
    told: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda path, words, environment: told.append((os.getcwd(), words, environment)))
    monkeypatch.setattr(os, "environ", {**os.environ, "KEPT": "1"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["overdrive", "run", "--fresh", "--ranks", "2", "-m", "train", "--fresh"])
    start = Start.now()
    (tmp_path / "out").mkdir()
    os.chdir("out")
    os.environ.update(KEPT="2", SET="3")
    sys.argv[1:] = []
    start.again({"SEED": "4"})
    start.again({}, without=("--fresh", "--ranks"), besides=["--ranks=1"])
    (place, words, environment), (_, without_ranks, _) = told
    assert place == str(tmp_path) and environment["KEPT"] == "1" and environment["SEED"] == "4"
    assert "SET" not in environment and "SEED" not in os.environ
    assert words[-6:] == ["run", "--ranks", "2", "-m", "train", "--fresh"]
    assert without_ranks[-5:] == ["run", "--ranks=1", "-m", "train", "--fresh"]
