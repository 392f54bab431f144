"""The versions of what a program runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.machine import software


def _installed(folder: Path, name: str, version: str) -> None:
    record = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tf-nightly"])
def test_tensorflow_has_its_version_whichever_of_its_packages_is_installed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(tmp_path, name, "2.99.0")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert software.versions()["tensorflow"] == "2.99.0"
