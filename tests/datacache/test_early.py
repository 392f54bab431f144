"""What a program used last time is checked while it starts, as strictly as when it is opened."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from overdrive.datacache import disk, manager
from overdrive.datacache import early as early_module
from overdrive.datacache import store as store_module
from overdrive.datacache.early import EarlyCheck, this_program, with_program
from overdrive.datacache.store import Store
from overdrive.seams.hub import Seams
from tests.datacache.test_store import partial_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a table that this program has used."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    store = Store(tmp_path / "samples")
    partial_of(store).finish([], 1.0)
    assert store.open("key") is not None
    store.remember_user("key", this_program())
    return store.folder


def no_sums(*_: object) -> list[int]:
    raise AssertionError("it was summed up again")


def test_what_was_checked_early_is_not_summed_up_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = EarlyCheck(folder)
    monkeypatch.setattr(store_module, "sums", no_sums)
    assert Store(folder, early=early).open("key") is not None


def test_a_flipped_bit_is_seen_early(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = folder / "key" / "0.raw"
    data = rows.read_bytes()
    rows.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:])
    early = EarlyCheck(folder)
    monkeypatch.setattr(store_module, "sums", no_sums)
    assert Store(folder, early=early).open("key") is None and not (folder / "key").exists()


def test_a_table_that_took_its_place_since_is_checked_for_itself(folder: Path) -> None:
    manifest = folder / "key" / "manifest.json"
    assert EarlyCheck(folder).take(folder / "key", manifest.read_text())
    early = EarlyCheck(folder)
    early._thread.join()  # it has read the manifest as it was
    manifest.write_text(manifest.read_text() + " ")
    assert early.take(folder / "key", manifest.read_text()) == {}


def test_what_another_program_used_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "4"])
    early = EarlyCheck(folder)
    assert early.take(folder / "key", (folder / "key" / "manifest.json").read_text()) == {}


@pytest.mark.parametrize("name", ["manifest.json", "0.raw", "programs.json"])
def test_what_is_missing_or_damaged_stops_nothing(folder: Path, name: str) -> None:
    (folder / "key" / name).write_bytes(b"{")
    found = Store(folder, early=EarlyCheck(folder)).open("key")
    assert (found is not None) is (name == "programs.json")


def test_a_note_holds_the_latest_programs_once() -> None:
    assert with_program(None, "a") == ["a"] and with_program(["a", "b"], "a") is None
    names = with_program([str(number) for number in range(40)], "new")
    assert names is not None and names[-1] == "new" and len(names) == 16 and names[0] == "25"


def test_what_was_not_opened_is_not_checked_again(folder: Path) -> None:
    store = Store(folder, early=EarlyCheck(folder))
    store.forget_unused()
    manifest = (folder / "key" / "manifest.json").read_text()
    assert EarlyCheck(folder).take(folder / "key", manifest) == {}
    assert Store(folder).open("key") is not None
    store.remember_user("key", this_program())
    assert EarlyCheck(folder).take(folder / "key", manifest)


def test_what_was_opened_stays_noted(folder: Path) -> None:
    store = Store(folder, early=EarlyCheck(folder))
    assert store.open("key") is not None
    store.forget_unused()
    assert EarlyCheck(folder).take(folder / "key", (folder / "key" / "manifest.json").read_text())


def test_a_program_that_is_over_at_once_waits_for_no_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `train.py --help`: Python's end waited until all of last time's tables were read."""
    read: list[bytes] = []
    begun, over = threading.Event(), threading.Event()

    def slow(part: bytes) -> int:
        read.append(part)
        begun.set()
        over.wait(60)
        return 0

    monkeypatch.setattr(disk, "_PART", 1)
    monkeypatch.setattr(disk, "zlib", SimpleNamespace(crc32=slow))
    monkeypatch.setattr(early_module, "read_note", lambda path: [this_program()])
    seams = Seams()
    monkeypatch.setattr(manager, "samples_folder", lambda: folder)
    manager.begin_early(seams)
    assert begun.wait(60)
    early = manager._early[seams]
    seams.close()
    over.set()
    early._thread.join(60)
    assert not early._thread.is_alive() and len(read) <= 8
    manifest = (folder / "key" / "manifest.json").read_text()
    assert early.take(folder / "key", manifest) == {}
