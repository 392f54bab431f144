"""Files that are written to while their samples are kept."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.changes.written_files import WrittenFiles


def replaced(path: Path) -> None:
    path.with_suffix(".tmp").write_text("x")
    os.replace(path.with_suffix(".tmp"), path)


def in_place(path: Path) -> None:
    with path.open("r+") as file:
        file.write("x")


WRITES: dict[str, Callable[[Path], object]] = {
    "replaced": replaced,
    "in place": in_place,
    "longer": lambda path: path.open("a").write("x"),
    "deleted": Path.unlink,
    "moved": lambda path: path.rename(path.with_suffix(".old")),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("relative", [False, True])
def test_a_write_of_any_kind_is_told(
    write: Callable[[Path], object], relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.json"
    path.write_text("a")
    monkeypatch.chdir(tmp_path)
    files = WrittenFiles()
    files.add(["data.json" if relative else str(path)])
    path.read_text()
    (tmp_path / "log.txt").write_text("the program's own")
    assert files.written() is None
    write(path)
    assert files.written() == str(path) and files.written()


@pytest.mark.parametrize("folder", ["", "a", "a/b"])
def test_what_its_folders_are_replaced_by_counts(folder: str, tmp_path: Path) -> None:
    inner = tmp_path / "top" / folder
    inner.mkdir(parents=True)
    (inner / "data").write_text("a")
    files = WrittenFiles()
    files.add([str(inner / "data")])
    assert files.written() is None
    (tmp_path / "top").rename(tmp_path / "old")
    assert files.written()


def test_what_comes_to_be_there_counts(tmp_path: Path) -> None:
    for path in ("late", "folder/late", "folder/in/folder"):
        files = WrittenFiles()
        files.add([str(tmp_path / path)])
        (tmp_path / "other").write_text("")
        assert files.written() is None
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
        assert files.written()
        shutil.rmtree(tmp_path / "folder", ignore_errors=True)


def test_a_file_may_be_written_to_by_another_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "of").mkdir()
    (other := tmp_path / "other").write_text("a")
    os.link(other, path := tmp_path / "of" / "data")
    files = WrittenFiles()
    files.add([str(path)])
    path.read_text()
    assert files.written() is None
    in_place(other)
    assert files.written() == str(path)


def test_a_file_that_was_open_before_may_come_to_be_mapped(tmp_path: Path) -> None:
    (path := tmp_path / "data").write_text("abc")
    with path.open("r+b") as file:
        files = WrittenFiles()
        files.add([str(path)])
        assert files.written() is None
        with mmap.mmap(file.fileno(), 0) as mapping:
            mapping[0] = 66
            assert files.written() == str(path)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_without_an_account_of_a_folder_its_files_are_looked_at(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WrittenFiles, "_asked", lambda *_: -1)
    path = tmp_path / "data.json"
    path.write_text("a")
    files = WrittenFiles()
    files.add([str(path), str(tmp_path / "none")])
    assert files.written() is None
    write(path)
    assert files.written() == str(path)


def test_more_of_them_than_can_be_looked_at_are_as_good_as_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WrittenFiles, "_asked", lambda *_: -1)
    files = WrittenFiles()
    files.add(str(tmp_path / f"{number}") for number in range(2000))
    assert "cannot be watched" in (files.written() or "")


def test_names_in_folders_that_are_not_there_are_watched_by_what_they_would_lie_in(tmp_path: Path) -> None:
    files = WrittenFiles()
    files.add(str(tmp_path / f"a cat and{number}" / "or a dog") for number in range(1000))
    assert files.written() is None
    (tmp_path / "a cat and7").mkdir()
    assert files.written()


def test_who_watches_nothing_is_told_nothing() -> None:
    assert WrittenFiles().written() is None


def test_without_an_account_a_write_at_once_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of files stands still for 4 ms: what is written twice meanwhile, and is as long, has one status."""
    monkeypatch.setattr(WrittenFiles, "_asked", lambda *_: -1)
    for number in range(5):
        (path := tmp_path / str(number)).write_text("0")
        files = WrittenFiles()
        files.add([str(path)])
        in_place(path)
        assert files.written() == str(path)
