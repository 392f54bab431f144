"""A disk that answers with errors (EIO), at the very calls by which Overdrive writes: `strace` has the kernel do it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from overdrive.core.plan import Plan
from overdrive.techniques.catalogue import catalogue
from tests.cli.test_killed_tune import TRAIN as KEEPS_SAMPLES
from tests.conftest import Run
from tests.survive import killed
from tests.survive.killed import files_of, plan_of
from tests.survive.test_survive import TRAIN

pytest.importorskip("torch")
pytestmark = pytest.mark.faults


@cache
def _why_not() -> str:
    """Why nothing can be injected here; "" where it can."""
    if shutil.which("strace") is None:
        return "there is no strace"
    line = ["strace", "-qq", "-f", "--seccomp-bpf", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "true"]
    tried = subprocess.run(line, capture_output=True, text=True)
    return f"strace cannot inject here: {tried.stderr}" if tried.returncode else ""


def failing(calls: str, *paths: Path, after: int = 0) -> list[str]:
    """What stands before a command of whose system calls on these paths (all, where none is given) all fail but the
    first ones of each thread."""
    if why := _why_not():
        pytest.skip(why)
    chosen = [word for path in paths for word in ("-P", str(path))]
    how = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO:when={after + 1}+"]
    return ["strace", "-qq", "-f", "--seccomp-bpf", "-o", os.devnull, *chosen, *how]


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    ("calls", "file"),
    [
        ("write", "candidate.tmp"),
        ("fsync", "candidate.tmp"),
        ("rename,renameat,renameat2", "candidate.tmp"),
        ("rename,renameat,renameat2", "candidate"),
        ("write", "journal"),
        ("fsync", "journal"),
        ("write", "output"),
    ],
)
def test_a_run_whose_snapshots_fail_says_so_once_and_goes_on_and_the_older_one_is_whole(
    calls: str, file: str, tmp_path: Path
) -> None:
    whole = killed.survive(tmp_path, "whole", TRAIN)
    assert whole.returncode == 0, whole.stderr
    first = killed.survive(tmp_path, "killed", TRAIN, dies=9)
    assert first.returncode == -signal.SIGKILL and "no snapshot" not in first.stderr, first.stderr
    under = failing(calls, tmp_path / "killed-run" / file)
    second = killed.survive(tmp_path, "killed", TRAIN, dies=18, under=under)
    assert second.returncode == -signal.SIGKILL and "gone on after step" in second.stderr, second.stderr
    told = [line for line in second.stderr.splitlines() if "Input/output error" in line or "EIO" in line]
    assert len(told) == 1 and "Traceback" not in second.stderr, second.stderr
    third = killed.survive(tmp_path, "killed", TRAIN)
    assert third.returncode == 0 and "is not what was written" not in third.stderr, third.stderr
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    if "from its start" not in third.stderr:
        assert first.stdout + second.stdout + third.stdout == whole.stdout


REMEMBERS = """
import json, sys
from pathlib import Path
from overdrive.core.ledger import Ledger
with Ledger.open(Path(sys.argv[1])) as ledger:
    for row in range(int(sys.argv[2]), int(sys.argv[3])):
        ledger.remember("a tune", "duel", str(row), {"row": row})
    print(json.dumps([ledger.recall("a tune", "duel"), ledger.notice]))
"""


def remember(ledger: Path, begin: int, end: int, under: Sequence[str] = ()) -> tuple[dict[str, dict[str, int]], str]:
    words = (*under, sys.executable, "-c", REMEMBERS, str(ledger), str(begin), str(end))
    got = subprocess.run(words, capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    rows, notice = json.loads(got.stdout)
    return rows, notice


@pytest.mark.fault(13)
@pytest.mark.parametrize("after", [0, 2, 5])
@pytest.mark.parametrize("calls", ["pwrite64", "fsync,fdatasync"])
def test_a_ledger_that_cannot_be_written_serves_on_and_keeps_what_it_had(
    calls: str, after: int, tmp_path: Path
) -> None:
    path = tmp_path / "own" / "ledger.sqlite"
    rows = {str(row): {"row": row} for row in range(20)}
    assert remember(path, 0, 5) == ({str(row): {"row": row} for row in range(5)}, None)
    found, notice = remember(path, 5, 15, failing(calls, path, Path(f"{path}-wal"), after=after))
    assert {str(row) for row in range(5, 15)} <= found.keys() and found.items() <= rows.items()
    assert "I/O error" in notice and notice.count(".") - notice.count(".sqlite") == 1, notice
    found, notice = remember(path, 15, 20)
    assert {str(row) for row in (*range(5), *range(15, 20))} <= found.keys() and found.items() <= rows.items()
    assert notice is None


@pytest.mark.fault(13)
@pytest.mark.parametrize("calls", ["fallocate", "write", "rename,renameat,renameat2"])
def test_samples_that_cannot_be_kept_on_disk_change_nothing(
    calls: str, tmp_path: Path, python: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(
        KEEPS_SAMPLES.replace("range(500)", "range(4)") + "print(model[0].weight.sum())\n"
    )
    plan = plan_of(tmp_path, "sample_cache")
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "samples"))
    words = ("-m", "overdrive", "run", "--plan", plan.name, "train.py")
    for _ in range(5):  # on a busy machine not every run comes to keep its samples
        whole = python(*words, cwd=tmp_path)
        if tables := [path.parent for path in (tmp_path / "samples").rglob("manifest.json")]:
            break
    (table,) = tables
    shutil.rmtree(table)
    place = table.with_name(f"partial-{table.name}")
    chosen = {"fallocate": (), "write": (place / "manifest.json",)}.get(calls, (place,))
    under = failing(calls, *chosen)
    done = subprocess.run([*under, sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == whole.stdout and "Traceback" not in done.stderr, done.stderr
    assert not table.exists()
    again = python(*words, cwd=tmp_path)
    assert again.returncode == 0 and again.stdout == whole.stdout and "left out" not in again.stderr


@pytest.mark.fault(13)
@pytest.mark.timeout(600)
def test_a_tune_on_a_failing_disk_comes_to_its_end_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KEEPS_SAMPLES)
    words = (sys.executable, "-m", "overdrive", "tune", "--budget", "90s", "train.py")
    under = failing("fdatasync", after=2)
    done = subprocess.run([*under, *words], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0 and "Traceback" not in told, told
    assert told.count("(disk I/O error)") == 1, told
    Plan.read(tmp_path / "train.overdrive.toml", catalogue())
