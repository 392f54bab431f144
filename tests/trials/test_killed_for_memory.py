"""Processes that the kernel ends because their cgroup has no memory left, as on a cluster whose jobs have a limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.trial import Trial
from tests.conftest import IMPORT_TORCH
from tests.trials.test_trial import TRAIN, exit_reason_of_running
from tests.warm_trials import WarmPool

pytestmark = pytest.mark.faults

GROUPS = Path("/sys/fs/cgroup/memory")
MIB = 1 << 20

Limit = Callable[[int], Path]

# 100 MiB at a time, of which each page is written to; never more than a machine has.
HOARD = "hoard = [bytes([step + 1]) * (100 << 20) for step in range(20)]"

FETCHES = f"""
class Hoarding(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, i):
        {HOARD}
        return torch.zeros(4)
"""


@pytest.fixture
def group() -> Iterator[Limit]:
    """Makes a cgroup with so much memory; nothing of it lives in the end."""
    folder = GROUPS / f"overdrive-test-{os.getpid()}"

    def limited(size: int) -> Path:
        try:
            folder.mkdir()
            (folder / "memory.limit_in_bytes").write_text(str(size))
        except OSError as error:
            pytest.skip(f"no memory cgroup (v1) can be made here: {error.strerror}")
        return folder

    yield limited
    if folder.exists():
        left = members_of(folder)
        for process in left:
            os.kill(process, 9)
        _removed(folder)
        assert not left


def members_of(folder: Path) -> list[int]:
    """Its processes, once those that are about to end have had their time."""
    until = time.monotonic() + 20
    while (found := (folder / "cgroup.procs").read_text().split()) and time.monotonic() < until:
        time.sleep(0.1)
    return [int(each) for each in found]


def _removed(folder: Path) -> None:
    for _ in range(100):
        try:
            return folder.rmdir()
        except OSError:  # the kernel is not done with the last one
            time.sleep(0.1)


def kills_in(folder: Path) -> int:
    """How many processes the kernel has ended there."""
    return int(dict(line.split() for line in (folder / "memory.oom_control").read_text().splitlines())["oom_kill"])


@pytest.mark.fault(7)
@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("", HOARD),
        (FETCHES, "list(torch.utils.data.DataLoader(Hoarding(), num_workers=1))"),
    ],
    ids=["the trial itself", "a worker of its loader"],
)
def test_a_trial_that_the_kernel_ends_is_told_as_memory_and_the_next_starts_clean(
    before: str, line: str, group: Limit, script: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = group(300 * MIB)
    with WarmPool() as pool:
        text = before and TRAIN.replace("model =", f"{before}\nmodel =", 1)
        path = script((text or TRAIN).replace("FAULT", f"if step == 5: {line}"))
        one = Trial(pool, TrialSpec(Program(str(path))))
        one.first_step()
        for process in one.group.pids:
            (folder / "cgroup.procs").write_text(str(process))
        kind, detail = exit_reason_of_running(one)
        assert kills_in(folder) >= 1 and kind == "oom", detail
        one.stop()
        assert not members_of(folder)
        following = Trial(pool, TrialSpec(Program(str(script(TRAIN.replace("FAULT", "pass"))))))
        following.first_step()
        assert following.left_out == {} and following.run(50).step == 51
        assert exit_reason_of_running(following) == ("ended", "after 200 steps")
        following.stop()


# Of which one fits into the memory, and two do not.
LARGE = f"""
import time
{IMPORT_TORCH}
hoard = b"x" * (600 << 20)
torch.manual_seed(0)
model = torch.nn.Linear(64, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2000):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.002)
"""


@pytest.mark.fault(7)
@pytest.mark.timeout(600)
def test_a_tune_of_which_the_kernel_ends_one_of_two_at_once_goes_on_with_one_at_a_time(
    group: Limit, script: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = group(1300 * MIB)
    (tmp_path / "temporary").mkdir()
    path = script(LARGE)
    join = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
    tune = (sys.executable, "-m", "overdrive", "tune", "--budget", "60s", path.name)
    done = subprocess.run(
        ["sh", "-c", join, "sh", *tune],
        cwd=path.parent,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    told = done.stdout + done.stderr
    assert kills_in(folder) >= 1 and not members_of(folder), told
    assert done.returncode == 0 and "Traceback" not in told, told
    assert "do not fit into the memory" in told and "whole processes were run in turn" in " ".join(told.split())
    assert not list((tmp_path / "temporary").glob("overdrive-*"))
