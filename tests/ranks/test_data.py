"""Hosts whose data differ are told so before the first step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from overdrive.ranks import data  # noqa: E402
from overdrive.ranks.data import FilesRead, differing  # noqa: E402
from overdrive.ranks.files import FileOrder  # noqa: E402
from overdrive.ranks.membership import Membership  # noqa: E402
from tests.ranks.test_slurm import free_ports  # noqa: E402

OLD = 100.0  # seconds


def old(path: Path, content: bytes) -> Path:
    """As it was there before the program began."""
    path.write_bytes(content)
    os.utime(path, (time.time() - OLD,) * 2)
    return path


def test_files_are_told_by_their_size_and_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    large = bytes(1 << 20)
    told = []
    for place, byte in ((0, 1), (0, 0), (1 << 19, 1), ((1 << 20) - 1, 1)):
        old(tmp_path / "a", large[:place] + bytes([byte]) + large[place + 1 :])
        read = FilesRead()
        read.opened("a")
        told.append(read.told()["a"])
    assert {size for size, _ in told} == {1 << 20}
    assert told[1] == told[2] and len({*told}) == 3  # of what lies between the ends nothing is read


def test_what_is_no_data_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "__pycache__").mkdir()
    read = FilesRead()
    for name in ("data", ".cache/settings", "__pycache__/numbas", "written"):
        old(tmp_path / name, b"x")
        read.opened(Path(name))
    read.made(b"written")
    (tmp_path / "log").write_text("x")  # newer than the program: it makes it, by whatever way
    os.utime(tmp_path / "log", (time.time() + OLD,) * 2)
    os.mkfifo(tmp_path / "pipe")
    os.utime(tmp_path / "pipe", (time.time() - OLD,) * 2)
    for each in ("log", "pipe", "gone", "/etc/hosts", "/proc/self/stat", data.__file__, pytest.__file__, "."):
        read.opened(each)
    assert [*read.told()] == ["data"] and not read.notes


def test_no_more_than_the_first_thousand_are_looked_at(tmp_path: Path) -> None:
    read = FilesRead()
    for number in range(1_010):
        read.opened(str(old(tmp_path / str(number), b"x")))
    assert len(read.told()) == 1_000


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({}, ""),
        ({"b": (7, "aa")}, ""),
        ({"a": (5, "aa"), "b": (7, "aa")}, ""),
        ({"a": (1_006, "aa")}, "rank 1 on two has another a than rank 0 on one (1,006 bytes, and 5 there)"),
        ({"a": (5, "bb")}, "(5 bytes in both places, of which the first or the last 65,536 are not the same)"),
    ],
)
def test_what_differs_is_named(others: dict[str, tuple[int, str]], said: str) -> None:
    found = differing([("one", {"a": (5, "aa")}), ("two", others)])
    assert said in found and bool(said) == bool(found)


def test_two_ranks_that_have_what_the_first_has_not_are_compared_too() -> None:
    found = differing([("one", {}), ("two", {"a": (5, "aa")}), ("three", {"a": (5, "bb")})])
    assert found.startswith("rank 2 on three has another a than rank 1 on two")


def test_what_the_program_opens_is_heard_of_by_each_way(tmp_path: Path) -> None:
    for name in "abcdefg":
        old(tmp_path / name, b"x")
    reader, writer = os.pipe()
    child = os.fork()  # for good
    if not child:
        try:
            read = FilesRead()
            order = FileOrder(1, 2, lambda: SimpleNamespace(mine=lambda: False), print, read)  # type: ignore[arg-type, return-value]
            order.follow(torch)
            exec(compile(READS, "train.py", "exec"), {"folder": tmp_path})
            os.write(writer, " ".join(sorted(Path(each).name for each in read.told())).encode())
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as told:
        assert told.read() == "a b c d"
    os.waitpid(child, 0)


READS = """
import io, os, pathlib, torch, numpy
open(folder / "a").close()
io.open(os.fspath(folder / "b"), "rb").close()
(folder / "c").read_bytes()
numpy.memmap(folder / "d")
open(folder / "e", "w").close()
open(folder / "e").close()
open(folder / "new", "w").close()
os.replace(folder / "new", folder / "f")
open(folder / "f").close()
torch.save({}, folder / "g")
torch.load(folder / "g")
open(0, closefd=False)
"""


@pytest.mark.parametrize(
    ("variables", "one"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_NODES": "1"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_NODES": "2"}, False),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, True),
    ],
)
def test_ranks_of_one_host_read_the_same_files(variables: dict[str, str], one: bool) -> None:
    found = Membership.of(variables)
    assert found and found.one_host is one


TRAINING = """
import os, torch
values = torch.frombuffer(bytearray(open("data.bin", "rb").read()), dtype=torch.uint8)[:192].view(24, 8).float()
{act}
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(3):
    optimizer.zero_grad()
    model(values).square().mean().backward()
    optimizer.step()
print("trained")
"""
TWO_READ = "open('log', 'w').write(str(os.getpid())); open('log').read()"  # what is a rank's own, and read back
ONE_READS = "os.path.exists('extra.bin') and open('extra.bin').read()"


@pytest.mark.cluster
@pytest.mark.fault("data")
@pytest.mark.parametrize(
    ("act", "last", "extra", "said"),
    [
        ("", b"\1", False, "has another data.bin than rank 0 on "),
        ("", b"\1\0", False, "(200,002 bytes, and 200,001 there)"),
        (TWO_READ, b"\0", False, ""),
        (ONE_READS, b"\0", True, ""),
    ],
    ids=["other content", "another size", "a file of its own", "one alone reads"],
)
def test_other_data_on_another_host_are_told(act: str, last: bytes, extra: bool, said: str, tmp_path: Path) -> None:
    """As a launcher starts ranks in the folders of two hosts: what the program uses of its data is the same in both."""
    (port,), ranks = free_ports(1), []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "train.py").write_text(TRAINING.format(act=act))
        old(folder / "data.bin", bytes(200_000) + (last if rank else b"\0"))
        if rank and extra:
            old(folder / "extra.bin", b"x")
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "overdrive", "run", "train.py"]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(command, cwd=folder, env={**os.environ, **told}, **pipes))
    out = [each.communicate(timeout=100) for each in ranks]
    both = out[0][1] + out[1][1]
    assert [each.returncode for each in ranks] == [0, 0] and out[0][0] == "trained\n", both
    assert said in both and both.count("all hosts need the same") == bool(said) and "Traceback" not in both
