"""A few of the programs that are made at random: what they print and write is the same under a plan, in every byte."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def test_programs_do_the_same_under_a_plan_and_some_are_served_from_what_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.adversarial", "made", "--count", "20", "--seed", "7", "--at-once", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    run = subprocess.run(
        [*command, "--plans", "sample_cache"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
    )
    assert run.returncode == 0, run.stdout + run.stderr
    served = re.search(r"sample_cache: 20 runs, 0 different, (\d+) served", run.stdout)
    assert served and int(served[1]) >= 5, run.stdout
