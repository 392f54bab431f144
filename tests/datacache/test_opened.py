"""What a fetch is seen to open and to list."""

from __future__ import annotations

import glob
import importlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overdrive.changes.files import Files
from overdrive.changes.written_files import WrittenFiles
from overdrive.datacache.opened import LookedFor, Opened


def by_descriptor(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.listdir(number)
    finally:
        os.close(number)


LISTS: dict[str, Callable[[Path], object]] = {
    "listdir": os.listdir,
    "scandir": lambda folder: list(os.scandir(folder)),
    "walk": lambda folder: list(os.walk(folder)),
    "glob": lambda folder: glob.glob(f"{folder}/*"),
    "iterdir": lambda folder: list(folder.iterdir()),
    "bytes": lambda folder: os.listdir(os.fsencode(folder)),
    "descriptor": by_descriptor,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that was there before."""
    (found := tmp_path / "folder").mkdir()
    (found / "0").write_text("0")
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
def test_a_folder_that_is_listed_is_watched_for_what_comes_and_goes(
    lists: Callable[[Path], object], folder: Path
) -> None:
    files, opened = WrittenFiles(), Opened()
    with opened:
        lists(folder)
    assert opened.paths() == {f"{folder}/"}
    files.add(opened.fresh())
    (folder.parent / "log.txt").write_text("the program's own")
    assert files.written() is None
    (folder / "1").write_text("1")
    assert files.written()


@pytest.mark.parametrize("change", ["made", "deleted", "written to"])
def test_what_came_before_it_is_known_that_a_folder_was_listed_counts(change: str, folder: Path) -> None:
    files = WrittenFiles()
    assert files.written() is None
    if change == "made":
        (folder / "1").mkdir()
    elif change == "deleted":
        (folder / "0").unlink()
    else:
        (folder / "0").write_text("1")
    files.add([f"{folder}/"], read_since=True)
    assert files.written()


def test_the_folder_where_a_process_is_counts_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    opened = Opened()
    with opened:
        os.listdir()
    assert opened.paths() == {f"{folder}/"}


def test_what_python_lists_to_find_modules_is_nothing_of_the_samples(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "overdrive_found.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    opened = Opened()
    with opened:
        importlib.import_module("overdrive_found")
    del sys.modules["overdrive_found"]
    assert not [path for path in opened.paths() if path.endswith("/")]


def test_a_folder_that_is_named_and_looked_through_is_watched_already(folder: Path) -> None:
    files = Files("")
    files.note(str(folder))
    assert files.uncovered({f"{folder}/"}) == [f"{folder}/"]
    files.looked_for = True
    assert files.uncovered({f"{folder}/"}) == []
    assert files.uncovered({f"{folder.parent}/"}) == [f"{folder.parent}/"]


def test_a_folder_that_is_not_there_may_come_to_be(folder: Path) -> None:
    files, opened = WrittenFiles(), Opened()
    with opened, pytest.raises(OSError):
        os.listdir(folder / "late")
    files.add(opened.paths())
    assert files.written() is None
    (folder / "late").mkdir()
    assert files.written()


ASKS: dict[str, Callable[[Path], object]] = {
    "exists": os.path.exists,
    "size": lambda path: os.path.exists(path) and os.path.getsize(path),
    "of Path": lambda path: os.path.isfile(Path(path)) if sys.version_info < (3, 11) else Path(path).is_file(),
    "access": lambda path: os.access(path, os.R_OK),
    "bytes": lambda path: os.path.isfile(os.fsencode(path)),
}


@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("there", [False, True])
def test_the_folder_of_a_file_that_is_asked_for_is_watched(
    asks: Callable[[Path], object], there: bool, folder: Path
) -> None:
    """A fetch asks for the mask of its sample, which may come later, as may those of other samples."""
    files, opened = WrittenFiles(), LookedFor()
    before = os.stat, os.access
    with opened:
        asks(folder / ("0" if there else "0.mask"))
    assert (os.stat, os.access) == before
    assert opened.found(Files("")) == [f"{folder}/"]
    files.add(opened.found(Files("")))
    (folder.parent / "log.txt").write_text("the program's own")
    assert files.written() is None
    (folder / "1.mask").write_text("1")
    assert files.written()


def test_a_folder_that_is_asked_for_is_watched_for_itself(folder: Path) -> None:
    files, opened = WrittenFiles(), LookedFor()
    with opened:
        assert os.path.isdir(folder)
    files.add(opened.found(Files("")))
    (folder.parent / "log.txt").write_text("the program's own")
    assert files.written() is None
    folder.rename(folder.parent / "old")
    assert files.written()


def test_what_is_named_and_asked_for_is_watched_already(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing else that is written beside it counts."""
    monkeypatch.chdir(folder)
    files, opened = Files(""), LookedFor()
    for text in ("0", "late", str(folder / "other")):
        files.note(text)
    files.looked_for = True
    with opened:
        assert os.path.exists("0") and not os.path.exists("late") and not os.path.exists(folder / "other")
    assert opened.found(files) == []
    with opened:
        os.path.exists("late.mask")
    assert opened.found(files) == [f"{folder}/"]


def test_what_another_thread_asks_for_is_not_the_fetchs(folder: Path) -> None:
    opened = LookedFor()
    with opened:
        asking = threading.Thread(target=os.path.exists, args=(folder / "0",))
        asking.start()
        asking.join()
    assert opened.found(Files("")) == []


def test_two_threads_that_fetch_at_once_are_each_heard(tmp_path: Path) -> None:
    """The one that began later was heard alone: what the other read was watched by nobody."""
    for name in ("here", "there"):
        (tmp_path / name).write_text("0")
    begun, read = threading.Event(), threading.Event()
    there = Opened()

    def fetch() -> None:
        with there:
            begun.set()
            read.wait(60)
            (tmp_path / "there").read_text()

    other = threading.Thread(target=fetch)
    with (here := Opened()):
        other.start()
        begun.wait(60)
        (tmp_path / "here").read_text()
        read.set()
        other.join(60)
    assert here.paths() == {str(tmp_path / "here")} and there.paths() == {str(tmp_path / "there")}
