"""Data sets whose fetches do more than read: what they do, they do as often as without us, and we stay out of it."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from overdrive.worker.session import Session  # noqa: E402

COUNT = 24
TECHNIQUES = ("sample_cache", "prefix_cache")


class Effect:
    """What a fetch does besides; `seen` says what came of it. It is no part of the data set, as a logger is none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "effect"  # in words, one line for each fetch

    def do(self, index: int) -> None:
        raise NotImplementedError

    def seen(self) -> str:
        return self.path.read_text()

    def end(self) -> None:
        pass


class FileLog(Effect):
    def do(self, index: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{index}\n")


class OpenLog(Effect):
    """Open since the program began, and with what was written last still in Python's own buffer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = self.path.open("w")
        self.file.write("begun\n")

    def do(self, index: int) -> None:
        self.file.write(f"{index}\n")

    def seen(self) -> str:
        self.file.flush()
        return super().seen()

    def end(self) -> None:
        self.file.close()


class Logger(Effect):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.handler = logging.FileHandler(self.path)
        self.log = logging.Logger("fetches")
        self.log.addHandler(self.handler)

    def do(self, index: int) -> None:
        self.log.warning("fetched %d", index)

    def end(self) -> None:
        self.handler.close()


class Printing(Effect):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = self.path.open("w")
        self.before, sys.stdout = sys.stdout, self.file

    def do(self, index: int) -> None:
        print("fetched", index)

    def seen(self) -> str:
        self.file.flush()
        return super().seen()

    def end(self) -> None:
        sys.stdout = self.before
        self.file.close()


class Sending(Effect):
    """To a server that it has been connected with all the time; another answer is none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ours, self.theirs = socket.socketpair()

    def do(self, index: int) -> None:
        self.ours.sendall(f"{index}\n".encode())

    def seen(self) -> str:
        self.theirs.setblocking(False)
        return self.theirs.recv(1 << 16).decode()

    def end(self) -> None:
        self.ours.close()
        self.theirs.close()


class Asking(Effect):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.server.setblocking(False)
        self.address = self.server.getsockname()

    def do(self, index: int) -> None:
        socket.create_connection(self.address).close()

    def seen(self) -> str:
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.server.accept()[0].close()
                count += 1
        return str(count)

    def end(self) -> None:
        self.server.close()


class Starting(Effect):
    def do(self, index: int) -> None:
        subprocess.run(["/bin/sh", "-c", f"echo {index} >> '{self.path}'"], check=True)


EFFECTS: dict[str, tuple[Callable[[Path], Effect], str]] = {
    "a file elsewhere": (FileLog, "opens a file for writing"),
    "an open file": (OpenLog, "writes to a file that is open"),
    "a logger": (Logger, "writes to a file that is open"),
    "printing": (Printing, "prints"),
    "a connection": (Sending, "could not be fetched"),
    "a server": (Asking, "talks to other processes"),
    "a program": (Starting, "starts other programs"),
}


def current() -> Effect:
    """As `logging.getLogger`: nothing leads to it from the data set."""
    effect: Effect = vars(sys)["overdrive_effect"]
    return effect


def make_current(effect: Effect) -> None:
    vars(sys)["overdrive_effect"] = effect


class Doing(Dataset):
    def __init__(self, draws: bool) -> None:
        self.draws = draws
        self.rows = torch.randn(COUNT, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        self.labels = list(range(COUNT))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        current().do(index)
        if not self.draws:
            return self.rows[index], self.labels[index]
        row = self.rows[index]
        for _ in range(20):  # something that is worth keeping
            row = row.sin()
        return row * random.random(), self.labels[index]


@pytest.fixture(params=EFFECTS)
def effect(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    made: list[Effect] = []

    def make() -> Effect:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(EFFECTS[request.param][0](folder))
        make_current(made[-1])
        return made[-1]

    yield make, EFFECTS[request.param][1]
    for each in reversed(made):
        each.end()


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_it_is_done_as_often_as_without_us_and_the_reason_is_given(technique: str, effect: Any) -> None:
    make, reason = effect

    def epoch(loader: Any) -> list[Any]:
        torch.manual_seed(1)
        random.seed(1)
        return [[part.tolist() for part in batch] for batch in loader]

    doing = make()
    draws = technique == "prefix_cache"
    plain, done = [epoch(DataLoader(Doing(draws), 4)) for _ in range(2)], doing.seen()
    reasons: dict[str, str] = {}
    doing = make()
    gc.collect()  # loaders of earlier tests are other loaders of this program
    with Session([(technique, {})], on_left_out=reasons.__setitem__):
        loader = DataLoader(Doing(draws), 4)
        ours = [epoch(loader) for _ in range(2)]
    assert ours == plain
    assert _numbers(doing.seen()) == _numbers(done)
    assert reason in reasons[technique], reasons


def _numbers(seen: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in seen.splitlines()]


class Counting(Doing):
    """In a database that it names: none of its writes is a Python file's."""

    def __init__(self, place: Path) -> None:
        super().__init__(draws=False)
        self.place = str(place)

    def __getitem__(self, index: int) -> Any:
        with contextlib.closing(sqlite3.connect(self.place)) as database, database:
            database.execute("insert into fetched values (?)", (index,))
        return self.rows[index].sin(), self.labels[index]


def test_a_database_that_is_written_to_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "fetched.db"
    with contextlib.closing(sqlite3.connect(place)) as database, database:
        database.execute("create table fetched (number)")
    reasons: dict[str, str] = {}
    with Session([("sample_cache", {})], on_left_out=reasons.__setitem__):
        assert len(list(DataLoader(Counting(place), 4))) == COUNT // 4
    assert "changes the data set" in reasons["sample_cache"]


def test_a_warning_is_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders warn of single pictures, and what they say of them is for people."""
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))

    class Warning(Effect):
        def do(self, index: int) -> None:
            print("odd metadata", file=sys.stderr)

    class Sines(Doing):
        def __getitem__(self, index: int) -> Any:
            row, label = super().__getitem__(index)
            return row.sin(), label

    make_current(Warning(tmp_path))
    reasons: dict[str, str] = {}
    with Session([("sample_cache", {})], on_left_out=reasons.__setitem__):
        list(DataLoader(Sines(draws=False), 4))
    assert not reasons


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_module_that_a_fetch_imports_first_is_compiled_by_python_as_ever(
    technique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compiled code is written to a folder that is made for it, and then renamed."""
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "met_late.py").write_text("OFFSET = 1\n")

    class Importing(Effect):
        def do(self, index: int) -> None:
            __import__("met_late")

    make_current(Importing(tmp_path))
    reasons: dict[str, str] = {}
    gc.collect()
    with Session([(technique, {})], on_left_out=reasons.__setitem__):
        sys.modules.pop("met_late", None)
        torch.manual_seed(1)
        assert len(list(DataLoader(Doing(draws=technique == "prefix_cache"), 4))) == COUNT // 4
    assert "changes files" not in str(reasons) and "opens a file" not in str(reasons)
    sys.modules.pop("met_late", None)
