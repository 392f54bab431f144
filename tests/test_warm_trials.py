"""Programs and commands that tests have forked print, write, fail and end as those that are started afresh."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run

Write = Callable[[str], Path]

SHOW = """
import atexit, os, sys, threading
print(sys.argv, sys.path[0], __name__, __file__, os.getcwd(), os.environ["OF_THE_TEST"])
print("overdrive" in sys.modules, "torch" in sys.modules, sys.modules["__main__"].__file__, sys.stdin.read() == "")
print("in words", file=sys.stderr)
atexit.register(print, "bye")
threading.Timer(0.2, print, ["a thread"]).start()
"""
ENDS = {
    "an error": "def fails():\n    raise ValueError('no')\nfails()",
    "with words": "sys.exit('in other words')",
    "with a code": "sys.exit(7)",
    "by itself": "",
    "no Python": "this is none",
}


def told(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    ours = [line for line in done.stderr.splitlines() if not line.startswith("overdrive: ")]
    return done.returncode, done.stdout, "\n".join(ours)


@pytest.fixture
def path(script: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OF_THE_TEST", "told")
    return script("")


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_program_is_as_a_fresh_one(end: str, path: Path, python: Run, warm_python: Run) -> None:
    path.write_text(SHOW + ENDS[end])
    assert told(warm_python(path.name, "--lr", "1", cwd=path.parent)) == told(
        python(path.name, "--lr", "1", cwd=path.parent, stdin=subprocess.DEVNULL)
    )


def test_a_forked_module_is_as_a_fresh_one(path: Path, python: Run, warm_python: Run) -> None:
    path.write_text("import sys\nprint(sys.argv, __name__, __spec__.name, sys.path[0])\nsys.exit(3)\n")
    assert told(warm_python("-m", "train", "-x", cwd=path.parent)) == told(python("-m", "train", "-x", cwd=path.parent))


def test_a_forked_run_is_as_a_fresh_one(path: Path, overdrive: Run, warm_run: Run) -> None:
    """Both have Overdrive among their modules, and the fresh one no PyTorch that the program could see."""
    path.write_text(SHOW.replace(', sys.stdin.read() == ""', "") + ENDS["an error"])
    assert told(warm_run(path.name, "--lr", "1", cwd=path.parent)) == told(
        overdrive("run", path.name, "--lr", "1", cwd=path.parent)
    )
