"""The programs of tests/programs, killed at random moments: each ends as it does uninterrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.programs.manifest import PROGRAMS, NaiveProgram

pytestmark = [pytest.mark.survive, pytest.mark.timeout(900)]
FOLDER = Path(__file__).parents[1] / "programs"
# They say so in their first run, and end right from their start.
FROM_START = {"self_compiled", "jit_scripted", "plain_sgd_by_hand", "no_training"}


@pytest.mark.parametrize("program", [each for each in PROGRAMS if not each.needs], ids=lambda each: each.name)
@pytest.mark.fault("killed")
def test_it_ends_as_uninterrupted(
    program: NaiveProgram, overdrive: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    words = list(program.command)
    if words[0] != "-m":
        words[0] = str(FOLDER / words[0])
    got = overdrive("verify", "--resume", "--kills", "5", "--seed", "1", "--", *words, cwd=tmp_path, timeout=900)
    assert got.returncode == 0, got.stdout + got.stderr
    if program.name not in FROM_START and program.exit_code == 0:
        assert " 0 times sent back to the start" in got.stdout, got.stdout
