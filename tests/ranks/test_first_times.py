"""Times that the program reads on ranks: rank 0's."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.whose import OURS
from overdrive.ranks import first_times
from overdrive.ranks.first_times import FirstTimes
from tests.conftest import Run

Write = Callable[[str], Path]
cluster = pytest.mark.cluster

# Rank 1 comes later to what it reads of the clock, and computes slower.
LATE = """
import datetime, os, sys, time, uuid
from timeit import default_timer
from overdrive.ranks.rank import current
late = bool(current() and current().rank)
late and time.sleep(1.2)
{before}
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0

def step():
    global steps
    steps += 1
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    late and time.sleep(0.001 * (steps % 7))
    return loss.item()

for _ in range(3): step()
late and time.sleep(0.3)

{after}
"""
BY_THE_CLOCK = {
    "from before PyTorch": ("began = time.time()", """
end = began + int(time.time() - began) + 2
while time.time() < end: step()"""),
    "what is spent": ("", "began = time.perf_counter()\nwhile default_timer() - began < 1: step()"),
    "between two steps": ("", "last = time.monotonic_ns()\nfor _ in range(80): step(); {decides}".format(
        decides="now = time.monotonic_ns(); optimizer.param_groups[0]['lr'] *= 1 - (now - last) % 7 / 100; last = now"
    )),
    "a date": ("", """
until = datetime.datetime.now() + datetime.timedelta(seconds=1)
while datetime.datetime.now() < until: step()"""),
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return write


@cluster
@pytest.mark.parametrize("kind", BY_THE_CLOCK)
def test_what_is_decided_by_a_clock_is_decided_alike(kind: str, script: Write, overdrive: Run) -> None:
    before, after = BY_THE_CLOCK[kind]
    path = script(LATE.format(before=before, after=after) + "print('steps', steps)\n")
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0 and re.fullmatch(r"steps \d+\n", told.stdout), told.stderr
    assert int(told.stdout.split()[1]) > 4


# What is made of the name is a number of the training.
NAMED = """
names = [time.strftime("%H-%M-%S"), datetime.datetime.now().isoformat(), str(uuid.uuid4()), str(uuid.uuid1())]
names += [time.ctime(), str(datetime.date.today()), f"{time.time():.6f}"]
folder = "-".join(names)[:200].replace(" ", "_")
os.makedirs(f"{folder}/{os.getpid()}")
optimizer.param_groups[0]["lr"] = 0.1 / (1 + sum(map(ord, "".join(names))) % 97)
for _ in range(6): step()
torch.save(model.state_dict(), f"{folder}/{os.getpid()}/model.pt")
"""


@cluster
def test_a_folder_that_is_named_by_the_time_is_one(script: Write, overdrive: Run) -> None:
    path = script(LATE.format(before="", after=NAMED))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0, told.stderr
    assert len([*path.parent.glob("*/*/model.pt")]) == 1


# Images a second, which are printed, and which it goes by.
RATES = """
best = 0
for _ in range(40):
    began = time.time()
    for _ in range(3): step()
    rate = 24 / (time.time() - began)
    best = max(best, rate)
    optimizer.param_groups[0]["lr"] = 1e-3 * (1 + int(rate) % 7)
    assert 0 < rate < 1e5
print(f"{best:.0f} images/s")
"""


@cluster
def test_images_a_second_are_those_of_rank_0(script: Write, overdrive: Run) -> None:
    path = script(LATE.format(before="", after=RATES))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0 and re.fullmatch(r"\d+ images/s\n", told.stdout), told.stderr


# Who waits for something reads the clock as often as it takes, each rank for itself.
ALONE = """
import threading
def waits():
    began = time.time()
    while time.time() - began < 0.2 * late: time.sleep(0.02)
thread = threading.Thread(target=lambda: [time.time() for _ in range(50)])
for number in range(4):
    step()
    waits()
    if not late: time.time(), time.monotonic()
    if number == 2: thread.start()
thread.join()
end = time.time() + 0.3
while time.time() < end: step()
{fails}
"""


@cluster
@pytest.mark.parametrize("fails", [False, True])
def test_who_reads_the_clock_alone_waits_for_nobody(fails: bool, script: Write, overdrive: Run) -> None:
    """Nor does one that fails, and measures that."""
    broken = "try:\n    late and {}['none']\n    step()\nfinally:\n    print(time.time() - end > 0)\n" if fails else ""
    path = script(LATE.format(before="", after=ALONE.format(fails=broken)))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert (told.returncode == 0) is not fails, told.stderr
    if fails:
        assert "KeyError: 'none'" in told.stderr and "rank 1 of 2" in told.stderr, told.stderr


class _Store(dict[str, Any]):
    def check(self, keys: Any) -> bool:
        return all(each in self for each in keys)

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:
        return bytes(self[key])


def _group(store: _Store, number: int) -> Any:
    return SimpleNamespace(store=store, monitor=SimpleNamespace(number=number), waited=0.0)


def _reads(first: FirstTimes, own: Any, file: str = "train.py", times: int = 1) -> Any:
    """What a line of that file is told, in place of `own`, the last time of so many."""
    space: dict[str, Any] = {"first": first.around(lambda plain, noted: noted()), "own": own}
    exec(compile(f"for _ in range({times}): told = first(None, lambda: own)", file, "exec"), space)
    return space["told"]


def _of(rank: int, group: Any, alone: bool = False, said: Any = None, before: Path | None = None) -> FirstTimes:
    return FirstTimes(rank, lambda: group, lambda: alone, before, (said if said is not None else []).append)


def test_ranks_are_told_what_rank_0_read_since_the_same_exchange() -> None:
    store = _Store()
    first, other = (_group(store, 3) for _ in range(2))
    zero, one = _of(0, first), _of(1, other)
    assert [_reads(zero, 1.5), _reads(zero, 2.5), _reads(zero, 10**18 + 1, "other.py")] == [1.5, 2.5, 10**18 + 1]
    assert [_reads(one, 7.0), _reads(one, 7.0), _reads(one, 7, "other.py")] == [1.5, 2.5, 10**18 + 1]
    first.monitor.number = other.monitor.number = 4
    size = len(store)
    assert _reads(zero, 3.5) == 3.5 and _reads(one, 7.0) == 3.5 and len(store) == size, "keys come again"


def test_who_reads_what_rank_0_does_not_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    store, said = _Store(), list[str]()
    store.set("beat/0", json.dumps({"number": 5}))
    monkeypatch.setattr(first_times, "_BEATS_EVERY", 0.01)
    one = _of(1, _group(store, 4), said=said)
    assert _reads(one, 7.0) == 7.0 and not said
    monkeypatch.setattr(first_times, "_IN_VAIN", 0.0)
    assert _reads(one, 8.0) == 8.0 and len(said) == 1
    _reads(_of(0, _group(store, 4)), 1.5, times=3)
    assert _reads(one, 9.0) == 9.0, "it has left off"


def test_other_threads_libraries_and_who_spins_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Store()
    zero, one = _of(0, _group(store, 4)), _of(1, _group(store, 4))
    monkeypatch.setattr(first_times, "_MOST", 2)
    assert _reads(zero, 1.5, times=3) == 1.5 and len(store) == 2
    assert _reads(one, 7.0, times=2) == 1.5 and _reads(one, 7.0) == 7.0
    told: list[Any] = []
    for file in (f"{OURS}techniques/one.py", threading.__file__):
        told.append(_reads(one, 7.0, file))
    thread = threading.Thread(target=lambda: told.append(_reads(one, 7.0, "other.py")))
    thread.start()
    thread.join()
    assert told == [7.0] * 3 and _reads(_of(1, _group(store, 4), alone=True), 7.0) == 7.0


def test_before_ranks_meet_rank_0_tells_by_a_file(tmp_path: Path) -> None:
    zero, one = (_of(rank, None, before=tmp_path / "times") for rank in (0, 1))
    _reads(zero, 1.5), _reads(zero, 10**18 + 1, "other.py")
    assert _reads(one, 7.0) == 1.5 and _reads(one, 7, "other.py") == 10**18 + 1
    zero.met()
    assert _reads(one, 7.0) == 7.0, "rank 0 has gone on"
    one.met()


def test_where_rank_0_has_no_room_for_its_times_the_others_wait_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one = (_of(rank, None, before=tmp_path / "times") for rank in (0, 1))
    monkeypatch.setattr(first_times, "_PATIENCE", 0.05)
    assert _reads(one, 7.0) == 7.0
    _reads(zero, 1.5)
    assert _reads(one, 8.0) == 8.0
    zero.met(), one.met()
