"""Faults of machines, brought about for real: a stalled network, a full disk, no memory, a rank killed as it saves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.ranks.comparing import difference
from tests.ranks.test_ranks import STEPS, acting, left_in
from tests.ranks.two_hosts import stall, start, two_hosts
from tests.trials.test_killed_for_memory import GROUPS, HOARD, MIB, Limit, group, kills_in, members_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cluster
__all__ = ["group"]  # a fixture

Write = Callable[[str], Path]
RUN = (sys.executable, "-m", "overdrive", "run", "--ranks", "2", "train.py")
MOST = 60.0  # seconds that anything may hang

# Rank 0 says when the network is to stall: in a step, which then waits for the other rank, or beside one.
STALLS = STEPS.replace("range(5)", "range(200_000)").replace("if step == 3:", "if step >= 3:")


@pytest.mark.fault("network")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("beside", "sentence"),
    [
        ("time.sleep(0.05)", "rank 0 reaches no other rank any more: the network between them stands still"),
        # Nobody asks the other for anything: the heartbeat alone can tell.
        ("time.sleep(300 if step == 6 else 0.05)", "rank 1 does not answer: it was killed, stopped or cut off"),
    ],
    ids=["in an exchange", "beside one"],
)
def test_a_network_that_stalls_ends_all_ranks_in_a_minute(beside: str, sentence: str, script: Write) -> None:
    folder = script(f"def act():\n    {beside}\n{STALLS}").parent
    with two_hosts():
        ranks = [start(rank, folder) for rank in range(2)]
        try:
            first = ranks[0].stdout
            assert first is not None
            while not first.readline().startswith("5 "):
                assert ranks[0].poll() is None, (folder / "errors0").read_text()
            stall()
            began = time.monotonic()
            for each in ranks:
                each.communicate(timeout=MOST + 30)
            took = time.monotonic() - began
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    said = (folder / "errors0").read_text()
    assert sentence in said and said.count("overdrive: ") == 1 and took < MOST, (took, said)
    assert "Traceback" not in said and "GLHF" not in said
    assert all(each.returncode for each in ranks) and not left_in(folder)


SAVES = """
import os, signal, sys, torch
from overdrive.ranks.rank import current
rank = current().rank if current() else 0

class Dies:
    def __reduce__(self):
        if rank == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        return int, ()

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"epoch": epoch, "model": model.state_dict(), "odd": Dies() if epoch == 2 else 0}, "last.pt")
"""


@pytest.mark.fault(16)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_it_saves_ends_all(rank: int, script: Write, overdrive: Run) -> None:
    path = script(SAVES.replace("DIES:", f"{rank}:"))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=MOST)
    assert told.returncode == 137 and f"rank {rank} was ended by SIGKILL" in told.stderr, told.stderr
    assert "Traceback" not in told.stderr and not left_in(path.parent)
    if rank:  # rank 0, whose file it is, comes last: it had not begun
        assert torch.load(path.with_name("last.pt"), weights_only=False)["epoch"] == 1


BY_PARTS = """
def act():
    with open("last", "wb") as file:
        for _ in range(30):
            file.write(bytes(1000))
            time.sleep(0.1 * (rank == 0))
    if rank:
        os.kill(os.getpid(), 9)
"""
AS_A_WHOLE = """
class Slow:
    def __reduce__(self):
        time.sleep(3 * (rank == 0))
        return bytes, (bytes(30_000),)
def act():
    torch.save(Slow(), "last")
    if rank:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.fault(16)
@pytest.mark.parametrize("program", [BY_PARTS, AS_A_WHOLE], ids=["by parts", "as a whole"])
def test_what_rank_0_has_begun_to_write_is_written_where_another_one_is_killed(
    program: str, script: Write, overdrive: Run
) -> None:
    """Rank 1 has written its own copy by then."""
    path = script(program + STEPS)
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=MOST)
    assert told.returncode == 137 and "rank 1 was ended by SIGKILL" in told.stderr, told.stderr
    last = path.with_name("last")
    found = last.read_bytes() if program == BY_PARTS else torch.load(last, weights_only=False)
    assert found == bytes(30_000) and len(told.stdout.splitlines()) == 3 and not left_in(path.parent)


EVALUATES = """
import os, signal, torch
from overdrive.ranks.rank import current
rank = current().rank if current() else 0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    model.train()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch in range(3):
            if rank == DIES and (epoch, batch) == (2, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            print(epoch, batch, model(torch.randn(8, 4)).sum().item(), flush=True)
"""


@pytest.mark.fault(16)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_it_evaluates_ends_all(rank: int, script: Write, overdrive: Run) -> None:
    path = script(EVALUATES.replace("DIES", str(rank)))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=MOST)
    assert told.returncode == 137 and f"rank {rank} was ended by SIGKILL" in told.stderr, told.stderr
    assert len(told.stdout.splitlines()) == 7 and "Traceback" not in told.stderr and not left_in(path.parent)


def on_small_disk(folder: Path, size: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command with a disk of its own for all that Overdrive keeps beside the user's files."""
    (folder / "disk").mkdir()
    command = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs disk && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], cwd=folder, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    environment = {**os.environ, "TMPDIR": str(folder / "disk")}
    return subprocess.run(
        [*command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * MOST
    )


@pytest.mark.fault(13)
def test_a_full_disk_for_what_other_ranks_print_is_told_and_the_run_goes_on(script: Write, python: Run) -> None:
    path = script(acting("print('y\\n' * 300_000)"))
    plain = python(path.name, cwd=path.parent)
    told = on_small_disk(path.parent, "400k", *RUN)
    assert told.returncode == 0 and not difference(plain.stdout, told.stdout, 1e-6), told.stderr
    assert told.stderr.count("No space left on device") == 1 and "Traceback" not in told.stderr, told.stderr
    assert not left_in(path.parent)


ONE_IS_FULL = "open('/dev/full' if rank else 'large', 'w').write('x' * 10_000_000)"


@pytest.mark.fault(13)
def test_a_full_disk_of_another_rank_ends_all_with_its_error(script: Write, overdrive: Run) -> None:
    path = script(acting(ONE_IS_FULL))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=MOST)
    assert told.returncode == 1 and "rank 1 of 2" in told.stderr and "failed in step 4" in told.stderr, told.stderr
    assert told.stderr.count("OSError: [Errno 28] No space left on device") == 1, told.stderr
    large = path.with_name("large")
    assert not large.exists() or large.stat().st_size == 10_000_000
    assert not left_in(path.parent)


@pytest.mark.fault(13)
def test_a_full_disk_for_the_programs_own_checkpoint_ends_all_as_in_one_process(script: Write, python: Run) -> None:
    path = script(acting("open('/dev/full', 'w').write('x' * 10_000_000)"))
    plain = python(path.name, cwd=path.parent)
    told = subprocess.run(RUN, cwd=path.parent, capture_output=True, text=True, timeout=MOST)
    assert told.returncode == plain.returncode == 1
    assert plain.stderr.splitlines()[-1] == "OSError: [Errno 28] No space left on device"
    assert told.stderr.count(plain.stderr.splitlines()[-1]) == 1 and "src/overdrive" not in told.stderr, told.stderr
    assert not left_in(path.parent)


# 64 MiB more than it has, of which a gigabyte is asked for.
NO_MORE = (
    "import resource; now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize(); "
    "resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20),) * 2); torch.zeros(1 << 28)"
)


@pytest.mark.fault(16)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_gets_no_memory_ends_all_with_its_error(rank: int, script: Write, overdrive: Run) -> None:
    path = script(acting(f"if rank == {rank}: {NO_MORE}"))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=MOST)
    assert told.returncode == 1 and "can't allocate memory" in told.stderr, told.stderr
    assert told.stderr.count("Traceback") == 1 and "src/overdrive" not in told.stderr, told.stderr
    assert ("rank 1 of 2" in told.stderr) is bool(rank) and not left_in(path.parent)


@pytest.mark.fault(16)
def test_a_rank_that_the_kernel_ends_for_want_of_memory_ends_all(group: Limit, script: Write, overdrive: Run) -> None:
    folder = group(600 * MIB)
    assert folder.is_relative_to(GROUPS)
    joins = f"open('{folder}/cgroup.procs', 'w').write(str(os.getpid()))"
    path = script(acting(f"if rank == 1: {joins}; {HOARD}"))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=MOST)
    assert kills_in(folder) == 1 and told.returncode == 137, told.stderr
    assert "rank 1 was ended by SIGKILL" in told.stderr and "Traceback" not in told.stderr
    assert not members_of(folder) and not left_in(path.parent)


FEW = """
import torch
torch.manual_seed(0)
samples = torch.utils.data.TensorDataset(torch.randn(2, 4), torch.randint(3, (2,)))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(epoch, len(x), loss.item())
"""


@pytest.mark.fault("few samples")
def test_more_ranks_than_samples_and_than_cores_give_the_numbers_of_one_process(
    script: Write, python: Run, overdrive: Run
) -> None:
    path = script(FEW)
    ranks = str(max(4, len(os.sched_getaffinity(0)) + 1))
    plain = python(path.name, cwd=path.parent)
    told = overdrive("run", "--ranks", ranks, "train.py", cwd=path.parent)
    assert told.returncode == 0 and not difference(plain.stdout, told.stdout, 1e-6), told.stderr
    assert "ranks saved nothing in 3 calls of Sequential" in told.stderr and "none had" in told.stderr, told.stderr
    assert not left_in(path.parent)
