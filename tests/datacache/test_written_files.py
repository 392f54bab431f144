"""Files that are written to while their samples are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.datacache.written_files import WrittenFiles


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


def test_who_watches_nothing_is_told_nothing() -> None:
    assert WrittenFiles().written() is None
