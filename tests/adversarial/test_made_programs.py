"""A few of the programs that are made at random: what they print and write is the same under a plan, in every byte."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.adversarial.leaves import LEAVES
from tests.adversarial.made import HELPERS

ROOT = Path(__file__).parents[2]


def test_what_is_read_from_a_files_time_is_not_when_the_program_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """made23_016 and made27_010 differed from themselves."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(HELPERS, names)
    leaf = LEAVES["file's time"]
    path = repr(eval(leaf.make.format(n=1), names))
    assert eval(leaf.read.format(e=path), names) == 0
    exec(leaf.writes[0].format(n=1, v=3), names)
    assert eval(leaf.read.format(e=path), names) == 3


@pytest.mark.parametrize(
    ("kind", "plan", "programs", "least"),
    [
        (("made", "--count", "12", "--seed", "7"), "sample_cache", 12, 3),
        (("leaves", "--only", "leaf_draws_file_that_grows,leaf_draws_queue"), "prefix_cache", 2, 2),
    ],
    ids=["sample_cache", "prefix_cache"],
)
def test_programs_do_the_same_under_a_plan_and_some_are_served_from_what_is_kept(
    kind: tuple[str, ...], plan: str, programs: int, least: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.adversarial", *kind, "--plans", plan, "--at-once", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0 and "TypeError" not in run.stdout, run.stdout + run.stderr
    served = re.search(rf"{plan}: {programs} runs, 0 different, (\d+) served", run.stdout)
    assert served and int(served[1]) >= least, run.stdout
