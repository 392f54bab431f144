"""The naive programs of `tests/programs` on two ranks: losses, output, files and exit code of one process."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.programs.manifest import PROGRAMS, NaiveProgram
from tests.ranks.comparing import difference

_FIRST, _FIRST_TOLERANCE = 10, 1e-4  # steps, and how far their losses may be apart: fp32, summed in another order
_TOLERANCE = 1e-2  # after dozens of steps, which make more of it


def losses(path: Path) -> list[list[float]]:
    return [[float.fromhex(loss) for loss in step] for step in json.loads(path.read_text())["losses"]]


@pytest.mark.cluster
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name)
def test_program_on_two_ranks(program: NaiveProgram, programs: Path, tmp_path: Path, overdrive: Run) -> None:
    missing = [name for name in program.needs if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (an optional extra)")
    seen = []
    for options in (["--no-plan"], ["--no-plan", "--ranks", "2"]):
        record = tmp_path / "record.json"
        command = list(program.command)
        folder = programs
        if program.writes:
            folder = tmp_path / f"folder{len(seen)}"
            folder.mkdir()
            command[0] = str(programs / command[0])
        told = overdrive("run", *options, "--record", str(record), *command, cwd=folder)
        files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if "__pycache__" not in str(each))
        seen.append((told, losses(record), files))
        assert told.returncode == program.exit_code, told.stderr
    (one, expected, files), (many, got, others) = seen
    assert [len(each) for each in got] == [len(each) for each in expected]
    for step, (theirs, ours) in enumerate(zip(expected, got, strict=True)):
        assert ours == pytest.approx(theirs, rel=_FIRST_TOLERANCE if step < _FIRST else _TOLERANCE, abs=1e-5), step
    assert not difference(one.stdout, many.stdout, _TOLERANCE)
    assert files == others
