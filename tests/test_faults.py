"""Faults of no single room: clocks that are set, bare machines, unruly scripts."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.core.ledger import Ledger
from overdrive.datacache.store import Store, StoreUnavailable
from overdrive.survive.folder import RunFolder
from tests.conftest import ROOT, Run

pytest.importorskip("torch")

Write = Callable[[str], Path]

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.9f}")
"""

# Where the time of day is told to others, compared with the times of files or recordings, which are of that clock, or
# only makes numbers differ; or it is the program that asks for it.
OF_THE_DAY = {
    "cli/doctor.py",
    "machine/limits.py",
    "machine/scheduler.py",
    "ranks/data.py",
    "worker/trackers.py",
    "worker/profiling/torch/observing.py",
    "changes/code.py",
    "datacache/disk.py",
    "datacache/in_use.py",
    "datacache/partial_table.py",
    "engines/kept.py",
    "seams/clocks.py",
    "changes/written_files.py",
    "techniques/data/prefix_cache/proving.py",
    "techniques/data/prefix_cache/recall.py",
}


@pytest.mark.fault(26)
def test_nothing_is_measured_by_a_clock_that_can_be_set() -> None:
    found = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if named in ("time.time", "time.time_ns") or named.endswith(("datetime.now", "datetime.utcnow")):
                found.add(path.relative_to(ROOT / "src" / "overdrive").as_posix())
    assert found == OF_THE_DAY


@pytest.mark.fault("two-users")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_two_users_neither_see_nor_disturb_what_the_other_keeps() -> None:
    """What one keeps in a folder that all may enter, and what another finds who is told to use the same places."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        place.chmod(0o777)
        ledger, samples, run = place / "state" / "ledger.sqlite", place / "samples", place / "train.survive"
        with Ledger.open(ledger) as kept:
            kept.remember("a program", "facts", "name", {"steps": 1})
        Store(samples)
        RunFolder(run, {"script": "a"}, fresh=False).note(said="by the first")
        before = _states(place)
        other = os.fork()
        if other == 0:
            os._exit(_as_another_user(ledger, samples, run))
        assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
        assert _states(place) == before and (run / "notes.json").exists()


def _states(place: Path) -> list[tuple[Path, int, int, int]]:
    found = [(path, path.stat()) for path in sorted(place.rglob("*"))]
    return [(path, state.st_mode, state.st_size, state.st_mtime_ns) for path, state in found]


def _as_another_user(ledger: Path, samples: Path, run: Path) -> int:
    """The number of what was not as promised, in a forked process; 0 where all was."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    for number, folder in enumerate((ledger.parent, samples, run), 1):
        try:
            os.listdir(folder)
            return number
        except PermissionError:
            pass
    with Ledger.open(ledger) as kept:
        if not kept.notice:  # that it is in memory
            return 4
    try:
        Store(samples)
        return 5
    except StoreUnavailable:
        pass
    try:
        RunFolder(run, {"script": "a"}, fresh=True)
        return 6
    except OSError:
        return 0


@pytest.mark.fault(27)
@pytest.mark.parametrize("command", ["run", pytest.param("tune", marks=pytest.mark.long)])
def test_a_bare_machine_is_enough(command: str, script: Write) -> None:
    """No compiler, no network, no home, no folder for temporary files but the working one."""
    path = script(TRAIN.replace("STEPS", "300" if command == "run" else "30_000"))
    bare = {"PATH": "/nowhere", "HOME": "/proc/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = {"run": ["run"], "tune": ["tune", "--budget", "40s"]}[command]
    without_network = ["/usr/bin/unshare", "-rn", sys.executable]
    if subprocess.run([*without_network, "-c", ""], env=bare, capture_output=True).returncode:
        without_network = [sys.executable]  # no namespaces here
    line = [*without_network, "-m", "overdrive", *words, path.name]
    got = subprocess.run(line, cwd=path.parent, env=bare, capture_output=True, text=True, timeout=200)
    assert got.returncode == 0 and "Traceback" not in got.stderr, got.stderr
    if command == "run":
        plain = subprocess.run([sys.executable, path.name], cwd=path.parent, env=bare, capture_output=True, text=True)
        assert got.stdout == plain.stdout
    else:
        assert "nothing is kept" in got.stderr + got.stdout


UNRULY = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import torch
os.closerange(3, 256)
if os.fork(): os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
os.setsid()
os.umask(0o077)
os.makedirs("elsewhere", exist_ok=True); os.chdir("elsewhere")
"""


@pytest.mark.fault("unruly")
def test_an_unruly_script_runs_as_under_python(script: Write, python: Run, overdrive: Run) -> None:
    path = script(UNRULY + TRAIN.replace("STEPS", "20") + "torch.save(model.state_dict(), 'last.pt')\nsys.exit(4)\n")
    plain = python(path.name, cwd=path.parent)
    (path.parent / "elsewhere" / "last.pt").unlink()
    got = overdrive("run", path.name, cwd=path.parent)
    assert (got.returncode, got.stdout) == (4, plain.stdout) and plain.returncode == 4, got.stderr
    assert (path.parent / "elsewhere" / "last.pt").exists() and "Traceback" not in got.stderr
