"""What a killed tune leaves in the machine's temporary folder is swept by the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.launchers.launcher import ProcessGroup
from overdrive.trials.launchers.local import LocalLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.reaper import Reaper
from overdrive.trials.trial import Trial

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


class Remembering(LocalLauncher):
    def __init__(self) -> None:
        super().__init__()
        self.started: list[ProcessGroup] = []

    def start(self, *order: Any) -> Any:
        self.started.append(super().start(*order))
        return self.started[-1]


def test_a_trial_that_starts_as_the_pool_closes_is_ended(tmp_path: Path) -> None:
    """By another thread, at Ctrl-C: nobody would have ended it."""
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(600)\n")
    launcher = Remembering()
    with TrialPool(launcher=launcher) as pool:
        pool.reaper.close()
        with pytest.raises(TrialOver):
            Trial(pool, TrialSpec(Program(str(script))))
        (group,) = launcher.started
        assert group.exit_code() is not None


def test_a_group_that_nobody_will_end_is_told_so_and_a_killed_reaper_is_none_of_that() -> None:
    reaper = Reaper()
    assert reaper.watch(1 << 22)
    reaper._process.kill()
    reaper._process.wait()
    assert reaper.watch(1 << 22)
    reaper.close()
    assert not reaper.watch(1 << 22)
    reaper.forget(1 << 22)
