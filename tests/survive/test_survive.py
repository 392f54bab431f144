"""`overdrive run --survive`: killed at a step, the same command ends as a run that was never interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.survive.folder import COST, GONE_ON, RunFolder
from tests.survive import killed
from tests.survive.killed import files_of, started

pytest.importorskip("torch")

# DIES is a step at which the process dies as it asks for the time: where no handler and no `finally` helps.
TRAIN = """
import os, random, signal, sys, time
import torch
torch.manual_seed(3); random.seed(4)
nn = torch.nn
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, 2))
model.register_forward_hook(lambda module, given, result: print("in a call", len(given[0])))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
x = torch.randn(60, 6); y = (x.sum(1) > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10, shuffle=True)
log = open("log.csv", "a")
total, best, step = torch.zeros(()), 9.0, 0
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step(); schedule.step()
        total += loss.detach(); step += 1
        if loss < best:
            best = loss.item()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "best.pt")
        print(step, f"{loss:.9f}", random.random())
        log.write(f"{step},{loss.item()},{schedule.get_last_lr()[0]}\\n")
        if step == int(os.environ.get("DIES", 0)):
            os.kill(os.getpid(), int(os.environ.get("BY", signal.SIGKILL)))
    print(f"epoch {epoch}", total.tolist(), os.path.getsize("log.csv") > 0, len(os.listdir()))
print(*(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""

RunIt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def survive(tmp_path: Path) -> RunIt:
    """Runs a script of a folder of its own, with snapshots all the time; `dies` is the step at which it is killed."""

    def run(text: str, name: str, *options: str, **how: object) -> object:
        return killed.survive(tmp_path, name, text, *options, **how)  # type: ignore[arg-type]

    return run  # type: ignore[return-value]


@pytest.mark.fault("killed", 28)
def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(survive: RunIt, tmp_path: Path) -> None:
    """Output, the log that it appends to, and its checkpoint, in every byte; killed again while it is made again."""
    whole = survive(TRAIN, "whole")
    assert whole.returncode == 0, whole.stderr
    first = survive(TRAIN, "killed", dies=8)
    assert first.returncode == -signal.SIGKILL
    second = survive(TRAIN, "killed", dies=16)
    assert second.returncode == -signal.SIGKILL and "gone on after step" in second.stderr, second.stderr
    before = time.monotonic()
    third = survive(TRAIN, "killed")
    assert third.returncode == 0 and "gone on after step" in third.stderr, third.stderr
    assert "from its start" not in first.stderr + second.stderr + third.stderr
    assert first.stdout + second.stdout + third.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    notes = RunFolder.notes_in(tmp_path / "killed-run")
    step, first, last = notes[GONE_ON]
    assert step in range(8, 16) and before < first < last < time.monotonic() and notes[COST] > 0
    over = survive(TRAIN, "killed")
    assert over.returncode == 0 and over.stdout == "" and "over already" in over.stderr
    changed = survive(TRAIN + "\nprint()", "killed")
    assert changed.returncode == 2 and "script" in changed.stderr and "--fresh" in changed.stderr


NAMED = TRAIN.replace(
    'log = open("log.csv", "a")',
    """from datetime import datetime
from io import open
from os import mkdir
place = f"{datetime.now():%H%M%S%f}-{time.strftime('%S')}"
mkdir(place); log = open(f"{place}/log.csv", "a")""",
).replace(
    'os.path.getsize("log.csv") > 0, len(os.listdir()))',
    """place)
    ends = open(f"{place}/ends.csv", "a"); print(epoch, file=ends); ends.close()""",
)


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_folder_that_is_named_after_the_time_is_the_same_one(survive: RunIt, tmp_path: Path) -> None:
    """And functions for files that the program has under names of its own are Python's again."""
    first = survive(NAMED, "killed", dies=17)
    second = survive(NAMED, "killed")
    assert second.returncode == 0 and "gone on after step" in second.stderr, first.stderr + second.stderr
    (log,) = (tmp_path / "killed").glob("*/log.csv")
    assert [line.split(",")[0] for line in log.read_text().splitlines()] == [str(step) for step in range(1, 25)]
    assert (log.parent / "ends.csv").read_text() == "0\n1\n2\n3\n"
    printed = [line.split() for line in (first.stdout + second.stdout).splitlines() if line.startswith("epoch")]
    assert len(printed) == 4 and {line[3] for line in printed} == {log.parent.name}


# As TensorBoard's `SummaryWriter` names its folder, with bars that ask for the time as often as they are drawn; and as
# a diffusion model has its methods decorated, which are called while calls of the model are.
IN_LIBRARY = """
import os, time
def make_folder():
    from datetime import datetime
    name = f"{datetime.now():%H%M%S%f}"
    os.mkdir(name)
    return name
def draw():
    for _ in range(time.time_ns() % 7):
        time.strftime("%H")
"""
BY_LIBRARY = TRAIN.replace(
    'log = open("log.csv", "a")',
    """import sys; sys.path.insert(0, "site-packages")
from named_by_time import make_folder, draw
place = make_folder(); log = open(f"{place}/log.csv", "a")
@torch.amp.autocast("cpu", enabled=False)
def noised(x):
    return x
model.register_forward_pre_hook(lambda module, given: (noised(given[0]), draw())[:1])""",
).replace('os.path.getsize("log.csv") > 0, len(os.listdir()))', "place)")


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_folder_that_a_library_names_after_the_time_is_the_same_one(survive: RunIt, tmp_path: Path) -> None:
    library = tmp_path / "killed" / "site-packages"
    library.mkdir(parents=True)
    (library / "named_by_time.py").write_text(IN_LIBRARY)
    first = survive(BY_LIBRARY, "killed", dies=17)
    second = survive(BY_LIBRARY, "killed")
    assert second.returncode == 0 and "gone on after step" in second.stderr, first.stderr + second.stderr
    (log,) = (tmp_path / "killed").glob("*/log.csv")
    assert [line.split(",")[0] for line in log.read_text().splitlines()] == [str(step) for step in range(1, 25)]


# As nanoGPT keeps its checkpoint, and PyTorch's word-level Transformer its mask; and a list of what one optimizer kept.
KEEPS = """
import copy, os, signal
import torch
nn = torch.nn
torch.manual_seed(3)
class Masked(nn.Linear):
    mask, calls = None, 0
    def forward(self, x):
        if self.mask is None or len(self.mask) != len(x):
            self.mask = (torch.arange(len(x)) % 5 > 0).float()
        self.calls += 1
        self.last = super().forward(x) * self.mask[:, None]
        return self.last
class Counts(torch.optim.Optimizer):
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["count"] = state.get("count", 0) + 1
            state.setdefault("past", []).append(p.grad.norm())
            del state["past"][:-3]
            state["before"] = p.detach().clone()
            p.data -= 0.01 * p.grad * (1 + 1 / state["count"])
model = nn.Sequential(Masked(6, 16), nn.Tanh(), nn.Linear(16, 2))
first, second = torch.optim.AdamW(model[0].parameters(), lr=0.02), Counts(model[2].parameters(), {})
x = torch.randn(60, 6); y = (x.sum(1) > 0).long()
best, loaded, history = 9.0, None, []
for step in range(1, 31):
    i = torch.randint(0, 60, (12 + step % 2,))
    loss = nn.functional.cross_entropy(model(x[i]), y[i])
    first.zero_grad(); second.zero_grad(); loss.backward()
    grads = [p.grad for p in model.parameters()]
    first.step(); second.step()
    if step % 4 == 1:
        checkpoint = {"model": model.state_dict(), "first": first.state_dict(), "second": second.state_dict()}
        torch.save(checkpoint, "last.pt")
    if loss < best:
        best, loaded = loss.item(), [copy.deepcopy(each.state_dict()) for each in (first, second)]
    if step % 9 == 0:
        first.load_state_dict(loaded[0]); second.load_state_dict(loaded[1])
    if step % 5 == 0:
        history += [dict(each) for each in second.state.values()]
    print(step, f"{loss:.9f}", model[0].calls)
    if step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save([checkpoint, loaded, history, grads, model[0].mask, model[0].last.detach()], "end.pt")
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_what_a_program_keeps_of_its_optimizers_and_its_model_of_its_calls_is_kept(
    survive: RunIt, tmp_path: Path
) -> None:
    whole = survive(KEEPS, "whole")
    assert whole.returncode == 0, whole.stderr
    parts = [survive(KEEPS, "killed", dies=dies) for dies in (8, 14, 23, 0)]
    told = "".join(each.stderr for each in parts)
    assert told.count("gone on after step") == 3 and "from its start" not in told, told
    assert "".join(each.stdout for each in parts) == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


POOL = """
import multiprocessing, torch
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-3, -4]))
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward(); optimizer.step()
print(weight.tolist())
"""


@pytest.mark.survive
def test_a_program_with_a_pool_comes_to_its_end_and_is_told_what_a_kill_costs(survive: RunIt) -> None:
    """A pool ends its processes by SIGTERM, which the run itself answers otherwise."""
    got = survive(POOL, "pool")
    assert got.returncode == 0 and got.stdout.startswith("[3, 4]"), got.stderr
    assert "it forks a process, whose work cannot be skipped. Killed, it begins from its start" in got.stderr


COUNTS = TRAIN.replace(
    "optimizer = torch",
    "calls = []\nmodel.register_forward_hook(lambda *_: calls.append(len(calls)))\noptimizer = torch",
).replace('print(f"epoch', 'print(len(calls), f"epoch')


@pytest.mark.survive
def test_what_a_call_leaves_in_python_sends_the_run_to_its_start_and_it_ends_right(
    survive: RunIt, tmp_path: Path
) -> None:
    whole = survive(COUNTS, "whole")
    first = survive(COUNTS, "killed", dies=17)
    second = survive(COUNTS, "killed")
    assert second.returncode == 0 and "begins from its start" in second.stderr and "calls" in second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


SETS = COUNTS.replace(
    "torch.manual_seed(3)",
    'os.environ["OMP_NUM_THREADS"] = "1"; os.makedirs("out", exist_ok=True); os.chdir("out"); torch.manual_seed(3)',
    1,
).replace("range(4)", "range(4 if sys.argv[1:] == ['--fresh'] else 0)")


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_it_begins_from_its_start_as_it_was_started(survive: RunIt, tmp_path: Path) -> None:
    """In its folder, with its variables and with the script's own option."""
    whole = survive(SETS, "whole", words=["--fresh"])
    assert whole.returncode == 0 and "epoch 3" in whole.stdout, whole.stderr
    first = survive(SETS, "killed", dies=17, words=["--fresh"])
    second = survive(SETS, "killed", words=["--fresh"])
    assert second.returncode == 0 and "begins from its start" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed" / "out") == files_of(tmp_path / "whole" / "out")


@pytest.mark.survive
@pytest.mark.fault(10)
def test_a_signal_of_the_scheduler_is_answered_with_a_snapshot(survive: RunIt, tmp_path: Path) -> None:
    whole = survive(TRAIN, "whole")
    first = survive(TRAIN, "killed", dies=12, by=signal.SIGUSR1, every="10m")
    assert first.returncode == 128 + signal.SIGUSR1 and "stopped by SIGUSR1" in first.stderr, first.stderr
    steps = [line for line in first.stdout.splitlines() if line[0].isdigit()]
    assert len(steps) <= 14  # the one after the signal, whose snapshot it is, and one to see that it is sound
    second = survive(TRAIN, "killed", "--requeue-code", "99", dies=20, by=signal.SIGTERM, every="10m")
    assert second.returncode == 99, second.stderr
    third = survive(TRAIN, "killed", every="10m")
    assert first.stdout + second.stdout + third.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_ctrl_c_while_it_is_made_again_costs_no_snapshot(survive: RunIt, tmp_path: Path) -> None:
    whole = survive(TRAIN, "whole")
    first = survive(TRAIN, "killed", dies=16)
    again = survive(TRAIN, "killed", dies=5, by=signal.SIGINT)
    assert again.returncode == -signal.SIGINT and "KeyboardInterrupt" in again.stderr, again.stderr
    assert "from its start" not in again.stderr
    third = survive(TRAIN, "killed")
    assert "gone on after step" in third.stderr, third.stderr
    assert first.stdout + again.stdout + third.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


# Where a library opens files past Python, as that of `safetensors` does; and as it is imported late by a program.
SAVES = TRAIN.replace(
    "if loss < best:",
    """if step in (2, 20):
            import ctypes
            from safetensors import serialize_file
            w = model[0].weight
            serialize_file({"w": ctypes.string_at(w.data_ptr(), w.nbytes)}, "kept.bin")""",
)
SAFETENSORS = """
import ctypes, os
def serialize_file(tensors, filename, metadata=None):
    libc, data = ctypes.CDLL(None), b"".join(tensors.values())
    handle = libc.open(os.fsencode(filename), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    assert libc.write(handle, data, len(data)) == len(data)
    libc.close(handle)
def safe_open(filename, framework="pt"):
    raise NotImplementedError
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_model_that_is_saved_past_python_is_not_written_over_while_the_run_is_made_again(
    survive: RunIt, tmp_path: Path
) -> None:
    """With zeros: no number counts there."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "safetensors.py").write_text(SAFETENSORS)
    survive(SAVES, "whole", dies=10)
    survive(SAVES, "killed", dies=10)
    kept = (tmp_path / "whole" / "kept.bin").read_bytes()
    second = survive(SAVES, "killed", dies=14)
    assert "gone on after step" in second.stderr, second.stderr
    assert (tmp_path / "killed" / "kept.bin").read_bytes() == kept
    third = survive(SAVES, "killed")
    assert third.returncode == 0, third.stderr
    assert (tmp_path / "killed" / "kept.bin").read_bytes() != kept


MAPPED = 'import numpy; kept = numpy.memmap("kept.dat", "float64", "w+", shape=24)'
MAPS = TRAIN.replace("log = open(", f"{MAPPED}\nlog = open(").replace(
    "        log.write(", "        kept[step - 1] = loss.item(); kept.flush()\n        log.write("
)


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_what_is_written_through_memory_is_not_lost(survive: RunIt, tmp_path: Path) -> None:
    """A mapping stays with the file that it was made of, which is a copy while a run is made again."""
    whole = survive(MAPS, "whole")
    first = survive(MAPS, "killed", dies=12)
    assert "kept.dat through memory" in first.stderr
    survive(MAPS, "killed")
    assert whole.returncode == 0 and len(whole.stdout.splitlines()) > 24
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def test_a_program_that_has_made_no_step_is_ended_by_a_signal_at_once(tmp_path: Path) -> None:
    """There is nothing to keep, and it may never make one that is seen."""
    process = started(tmp_path, "waits", "import time\nprint('ready', flush=True)\ntime.sleep(100)\n")
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
        assert "stopped by SIGTERM: it begins from its start again" in errors
    finally:
        process.kill()


@pytest.mark.parametrize(("by", "code"), [(signal.SIGUSR1, 128 + signal.SIGUSR1), (signal.SIGTERM, 99)])
def test_a_job_whose_time_has_brought_nothing_is_not_queued_again_for_ever(tmp_path: Path, by: int, code: int) -> None:
    """Taken away for another's job, it is: that may have been early."""
    waits = "import time\nprint('ready', flush=True)\ntime.sleep(100)\n"
    process = started(tmp_path, "waits", waits, "--requeue-code", "99")
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(by)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code
        assert ("not to be queued again" in errors) == (code != 99), errors
    finally:
        process.kill()


@pytest.mark.survive
def test_a_job_that_is_at_its_limit_while_it_is_made_again_is_not_queued_again(survive: RunIt) -> None:
    first = survive(TRAIN, "killed", "--requeue-code", "99", dies=12, by=signal.SIGUSR1, every="10m")
    assert first.returncode == 99 and "goes on after step" in first.stderr, first.stderr
    again = survive(TRAIN, "killed", "--requeue-code", "99", dies=5, by=signal.SIGUSR1)
    assert again.returncode == 128 + signal.SIGUSR1 and "not to be queued again" in again.stderr, again.stderr
    later = survive(TRAIN, "killed", "--requeue-code", "99", dies=20, by=signal.SIGUSR1)
    assert later.returncode == 99, later.stderr


@pytest.mark.survive
@pytest.mark.fault(12)
def test_a_damaged_snapshot_is_passed_over_for_the_one_before(survive: RunIt, tmp_path: Path) -> None:
    whole = survive(TRAIN, "whole")
    first = survive(TRAIN, "killed", dies=20)
    newest = sorted((tmp_path / "killed-run").glob("*.snapshot"))[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    second = survive(TRAIN, "killed")
    assert f"{newest.name} is not what was written" in second.stderr and "gone on after step" in second.stderr
    assert first.stdout + second.stdout == whole.stdout


FILLS = """
import os, signal, torch
torch.manual_seed(0)
model = torch.nn.Linear(300, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 12):
    loss = model(torch.randn(8, 300)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, loss.item(), "x" * WIDTH)
    if step == 5 and "ENDS" in os.environ: os.kill(os.getpid(), signal.SIGTERM)
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.survive
@pytest.mark.fault(13)
@pytest.mark.parametrize(("width", "said"), [(10, "no snapshot after step"), (200_000, "cannot be gone on with")])
def test_a_disk_of_1_mb_is_told_and_the_run_goes_on(width: int, said: str, tmp_path: Path) -> None:
    """Of which a snapshot is too large, or all that is printed."""
    (tmp_path / "train.py").write_text(FILLS.replace("WIDTH", str(width)))
    (tmp_path / "disk").mkdir()
    run = f"{sys.executable} -m overdrive run --survive=disk/run --every 0.001s"
    script = (
        "mount -t tmpfs -o size=1m tmpfs disk && "
        f"{{ {run} train.py > out; echo ended $? >&2; ENDS=1 {run} --fresh train.py > /dev/null; echo ended $?; }}"
    )
    got = subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    if "ended" not in got.stderr:
        pytest.skip(f"no tmpfs can be mounted here: {got.stderr}")
    first, ended, _ = got.stderr.partition("ended 0")
    assert ended and first.count(said) == 1 and got.stdout == "ended 143\n", got.stderr
    weights = (tmp_path / "model.pt").read_bytes()
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert plain.stdout == (tmp_path / "out").read_text() and weights == (tmp_path / "model.pt").read_bytes()


LOSES = TRAIN.replace("(model(inputs), targets)", "(model(inputs), targets) * (float('nan') if step == 9 else 1)")


@pytest.mark.survive
@pytest.mark.fault("nan")
def test_a_snapshot_is_taken_where_a_loss_is_lost(survive: RunIt, tmp_path: Path) -> None:
    first = survive(LOSES, "killed", "--on-nan", "snapshot", dies=20, every="10m")
    assert first.stderr.count("the loss of step 10 is nan; a snapshot is taken") == 1, first.stderr
    assert [path.name for path in (tmp_path / "killed-run").glob("*.snapshot")] == ["step-000000010.snapshot"]
    second = survive(LOSES, "killed", every="10m")
    assert second.returncode == 0 and "gone on after step 10" in second.stderr
