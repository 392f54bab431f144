"""`overdrive run --on-nan` and `--on-hang` on whole programs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run

pytest.importorskip("torch")

Write = Callable[[str], Path]

LOSES = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(1, 7):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        if step == 4: loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step)
finally:
    open("last", "w").write("kept")
"""

# HERE is what stands in for a hang, after the tenth step.
HANGS = """
import ctypes, os, queue, sys, threading, time
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 160
    def __getitem__(self, i):
        if WORKERS and i == 110: stands_in_worker()
        return torch.full((4,), float(i))
def stands_in_worker(): time.sleep(60)
def stands(): queue.Queue().get()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=WORKERS)
for step, batch in enumerate(loader, 1):
    optimizer.zero_grad(); model(batch).pow(2).mean().backward(); optimizer.step()
    time.sleep(0.05)
    if step == 10:
        HERE
print("done", threading.active_count())
"""


def hangs(here: str, workers: int = 0) -> str:
    return HANGS.replace("HERE", here).replace("WORKERS", str(workers))


def test_a_lost_loss_is_told_and_all_else_stays_as_under_python(script: Write, warm_python: Run, warm_run: Run) -> None:
    path = script(LOSES)
    got = warm_run("train.py", cwd=path.parent)
    assert got.stderr.count("the loss of step 4 is nan") == 1 and "the run goes on" in got.stderr
    assert got.returncode == 0 and got.stdout == warm_python("train.py", cwd=path.parent).stdout
    wrong = warm_run("--on-nan", "snapshot", "train.py", cwd=path.parent)
    assert wrong.returncode == 2 and "--on-nan snapshot belongs to --survive" in wrong.stderr
    wrong = warm_run("--hang-after", "3m", "train.py", cwd=path.parent)
    assert wrong.returncode == 2 and "--hang-after belongs to --on-hang" in wrong.stderr


@pytest.mark.long
@pytest.mark.fault("nan")
def test_a_program_that_trains_in_a_thread_ends_too(script: Write, overdrive: Run) -> None:
    text = "def train():\n" + "".join(f"    {line}\n" for line in LOSES.splitlines())
    path = script(text + "import threading\none = threading.Thread(target=train)\none.start()\none.join()\n")
    got = overdrive("run", "--on-nan", "stop", "train.py", cwd=path.parent)
    assert got.returncode == 65 and got.stdout == "step 1\nstep 2\nstep 3\n", got.stderr


@pytest.mark.long
@pytest.mark.fault("hang")
def test_a_worker_that_stands_is_seen_in_the_stacks(script: Write, overdrive: Run) -> None:
    path = script(hangs("pass", workers=2))
    got = overdrive("run", "--on-hang", "stop", "--hang-after", "2s", "train.py", cwd=path.parent)
    assert got.returncode == 75, got.stderr
    text = (path.parent / "train.stacks.txt").read_text()
    assert "stands_in_worker" in text and text.count("\nWorker ") == 2


@pytest.mark.long
@pytest.mark.fault("hang")
def test_the_stacks_are_there_though_a_library_holds_pythons_lock(script: Write) -> None:
    """Of Python's threads none gets its turn any more: the kernel sends the signal."""
    wait = "one = ctypes.PyDLL(None); lock = (ctypes.c_byte * 32)(); one.sem_init(lock, 0, 0); one.sem_wait(lock)"
    path = script(hangs(wait))
    words = ["run", "--on-hang", "stacks", "--hang-after", "1s", "train.py"]
    process = subprocess.Popen([sys.executable, "-m", "overdrive", *words], cwd=path.parent)
    stacks = path.parent / "train.stacks.txt"
    try:
        until = time.monotonic() + 60
        while "execute" not in (stacks.read_text() if stacks.exists() else "") and time.monotonic() < until:
            time.sleep(0.1)
        assert f'"{path}", line' in stacks.read_text() and process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize(
    "here",
    [
        "time.sleep(1)",
        "pid = os.fork()\n        if not pid: sys.exit(7)\n        print(os.waitpid(pid, 0)[1])",
        "os.system(f'(sleep 4; kill -CONT {os.getpid()}) &'); os.kill(os.getpid(), 19)",
        "os.closerange(3, 64)",
        "[(model(torch.randn(8, 4)), time.sleep(0.1)) for _ in range(60)]",
        "import faulthandler; faulthandler.enable(); faulthandler.dump_traceback_later(60); "
        "faulthandler.cancel_dump_traceback_later()",
    ],
)
@pytest.mark.fault("false-alarm")
def test_what_is_no_hang_is_not_told_and_nothing_is_left(here: str, script: Write, python: Run, overdrive: Run) -> None:
    path = script(hangs(here))
    got = overdrive("run", "--on-hang", "stop", "--hang-after", "3s", "train.py", cwd=path.parent)
    assert got.returncode == 0 and "no step" not in got.stderr, got.stderr
    assert got.stdout == python("train.py", cwd=path.parent).stdout and "done 1" in got.stdout
    assert not list(path.parent.glob("*.stacks.txt")) or "closerange" in here  # its descriptor is gone


@pytest.mark.long
@pytest.mark.fault("hang")
def test_a_hang_that_ends_is_told_and_the_run_goes_on(script: Write, overdrive: Run) -> None:
    path = script(hangs("time.sleep(4)"))
    got = overdrive("run", "--on-hang", "go-on", "--hang-after", "2s", "train.py", cwd=path.parent)
    assert got.returncode == 0 and got.stderr.count("no step and no batch for 2 s, since step 10") == 1
    assert "done 1" in got.stdout and not list(path.parent.glob("*.stacks.txt"))
