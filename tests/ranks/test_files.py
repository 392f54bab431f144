"""The order in which ranks change folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.ranks.files import FileOrder


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
        return "1000"


def test_what_is_written_is_counted_and_what_is_read_is_not(tmp_path: Path) -> None:
    """By each way in which a program may write, once."""
    store = Noting()
    group: Any = SimpleNamespace(store=store, mine=lambda: True)
    reader, writer = os.pipe()
    child = os.fork()  # for good
    if not child:
        try:
            tempfile.tempdir = None  # nobody has asked for it yet
            order = FileOrder(1, 2, lambda: group)
            order.follow(torch)
            given = {"folder": tmp_path, "store": store, "writer": writer, "order": order}
            exec(compile(WRITES, "train.py", "exec"), given)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(writer)
    with os.fdopen(reader) as told:
        assert told.read().split() == ["1", "1", "2", "3", "4", "4", "4", "5", "5"]


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
os.write(writer, " ".join(told).encode())
os._exit(0)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_program_does_with_a_file_stands_though_other_ranks_are_gone(rank: int, tmp_path: Path) -> None:
    group: Any = SimpleNamespace(store=Gone(), mine=lambda: True)
    child = os.fork()  # for good
    if not child:
        try:
            FileOrder(rank, 2, lambda: group)
            os.mkdir(tmp_path / "made")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and (tmp_path / "made").is_dir()
