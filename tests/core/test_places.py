"""Where files of ours lie."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from overdrive.core.places import samples_folder


def test_samples_have_a_place_though_the_user_has_neither_name_nor_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("OVERDRIVE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "home", unknown)
    assert samples_folder() == tmp_path / f"overdrive-{os.getuid()}" / "samples"
