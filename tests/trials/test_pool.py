"""What a killed tune leaves in the machine's temporary folder is swept by the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from overdrive.trials.pool import TrialPool

KILLED = """
import time
from overdrive.trials.pool import TrialPool
pool = TrialPool()
print(pool.scratch, flush=True)
time.sleep(600)
"""


def test_a_pool_sweeps_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with TrialPool() as beside:
            assert left.exists()
        process.kill()
    with TrialPool() as later:
        assert [each.name for each in tmp_path.iterdir()] == [later.scratch.name]
    assert not list(tmp_path.iterdir())
    assert not beside.scratch.exists()
