"""The order in which ranks change folders."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.ranks.files import FileOrder
from tests.conftest import Run
from tests.ranks.test_ranks import acting

Write = Callable[[str], Path]


class Gone:
    """A store whose keeper has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Broken pipe")


class Noting(dict[str, str]):
    """A store that notes what it is told."""

    set = dict.__setitem__

    def check(self, keys: list[str]) -> bool:
        return True

    def get(self, key: str, default: Any = None) -> str:
        return "[1000, 1]"


def test_what_is_written_is_counted_and_what_is_read_is_not(tmp_path: Path) -> None:
    """By each way in which a program may write, once."""
    store = Noting()
    group: Any = SimpleNamespace(store=store, mine=lambda: True, monitor=SimpleNamespace(number=7))
    reader, writer = os.pipe()
    child = os.fork()  # for good
    if not child:
        try:
            tempfile.tempdir = None  # nobody has asked for it yet
            order = FileOrder(1, 2, lambda: group, print)
            order.follow(torch)
            given = {"folder": tmp_path, "store": store, "writer": writer, "order": order}
            exec(compile(WRITES, "train.py", "exec"), given)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(writer)
    with os.fdopen(reader) as told:
        assert [*map(json.loads, told)] == [[7, count] for count in (1, 1, 2, 3, 4, 4, 4, 5, 5)]


WRITES = """
import io, os, pathlib, tempfile, torch
told = []
def note():
    told.append(store["files/1"])
open(folder / "a", "w").close(); note()
tempfile.gettempdir(); note()
(folder / "b").write_text("x"); note()
os.close(os.open(folder / "c", os.O_CREAT | os.O_WRONLY)); note()
torch.save({}, folder / "d.pt"); note()
torch.save({}, io.BytesIO()); torch.load(folder / "d.pt"); open(folder / "a").read(); note()
open("/dev/null", "w").close(); note()
try:
    open()
except TypeError as error:
    assert "open()" in str(error)
os.makedirs(folder / "e"); note()
with order.uncounted():
    open(folder / "f", "w").close(); note()
os.write(writer, "\\n".join(told).encode())
os._exit(0)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_program_does_with_a_file_stands_though_other_ranks_are_gone(rank: int, tmp_path: Path) -> None:
    group: Any = SimpleNamespace(store=Gone(), mine=lambda: True, monitor=SimpleNamespace(number=7))
    child = os.fork()  # for good
    if not child:
        try:
            FileOrder(rank, 2, lambda: group, print)
            os.mkdir(tmp_path / "made")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and (tmp_path / "made").is_dir()


class Told(dict[str, Any]):
    """A store that other ranks tell, as time passes: at that second, that."""

    def __init__(self, *events: tuple[float, str, Any]) -> None:
        self.now, self.events, self.said = 0.0, [*events], list[str]()
        super().__init__({"beat/1": {"number": 7}})

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            _, key, self[key] = self.events.pop(0)

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str, default: Any = None) -> Any:
        return json.dumps(self[key])


OVER = {"failed": False}


@pytest.mark.parametrize(
    ("events", "seconds", "said"),
    [
        ([(7.0, "files/1", [7, 1])], 7.0, ""),  # late, and so waited for
        ([(1.0, "beat/1", {"number": 8})], 1.0, ""),  # in the exchange that comes next, which rank 0 is to come to
        ([(9.0, "beat/1", {"number": 8})], 9.0, "rank 0 changes files that other ranks leave as they are"),
        ([(1.0, "over/1", OVER)], 1.0, ""),
        ([(1.0, "over/1", {"failed": True})], 60.0, "rank 1 has not come to a change of files in 60 s"),
        ([], 60.0, "rank 1 has not come to a change of files in 60 s: it waits for them no more before"),
    ],
)
def test_a_rank_that_lives_and_is_late_is_waited_for_and_one_that_has_gone_on_is_not(
    events: list[tuple[float, str, Any]], seconds: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = FileOrder.__new__(FileOrder)
    store = Told(*events)
    monkeypatch.setattr(time, "monotonic", lambda: store.now)
    monkeypatch.setattr(time, "sleep", store.sleep)
    order._rank, order._size, order._say = 0, 2, store.said.append
    order._waits, order._in_vain, order._change = True, 0.0, (7, 1)
    group: Any = SimpleNamespace(store=store)
    order._wait_for_others(group)
    assert store.now == pytest.approx(seconds, abs=0.5)
    assert [each.startswith(said) for each in store.said] == [True] * bool(said)
    assert order._waits is not bool(said)


@pytest.mark.cluster
def test_a_rank_that_is_late_finds_what_the_program_has_left(script: Write, python: Run, overdrive: Run) -> None:
    """Also after rank 0 has written something alone, which it then goes on from."""
    acts = "time.sleep(7 * (rank == 1)); rank or open('own', 'w').close(); os.mkdir('out'); os.rmdir('out')"
    path = script(acting(acts))
    plain = python("train.py", cwd=path.parent)
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0 and len(told.stdout) == len(plain.stdout), told.stderr
    assert "change" not in told.stderr, told.stderr
