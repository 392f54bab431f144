"""The folder of an export is there whole or not at all, and replaces nothing that was not asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overdrive.targets.folder import put, why_not


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "signature.json").write_text("new")
    return tmp_path / "source"


def test_it_replaces_an_export_and_leaves_nothing_beside(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "out" / "model"
    place.parent.mkdir()
    assert not why_not(place, False)
    for _ in range(2):
        put(source, place)
        (source / "signature.json").write_text("newer")
    assert (place / "signature.json").read_text() == "newer" and os.listdir(place.parent) == ["model"]


def test_a_folder_is_replaced_only_where_that_is_asked_for_and_it_is_an_export(source: Path, tmp_path: Path) -> None:
    assert "--force" in why_not(source, False) and not why_not(source, True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    assert "holds no export" in why_not(tmp_path / "photos", True)
    assert "is no folder" in why_not(tmp_path / "photos" / "cat.jpg", True)
    assert "no folder" in why_not(tmp_path / "nowhere" / "model", False)


def test_what_was_there_stays_where_writing_fails(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out" / "model"
    place.parent.mkdir()
    put(source, place)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(OSError, match="No space"):
        put(source, place)
    assert (place / "signature.json").read_text() == "new" and os.listdir(place.parent) == ["model"]
