"""Fixtures of all tests of the data techniques."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.datacache import buffers, filler
from tests.conftest import long_but


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where samples are kept: a new place for each test, filled by and by."""
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OVERDRIVE_PREFILL", raising=False)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def small_batches_in_reused_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large ones are in earnest."""
    monkeypatch.setattr(buffers, "_SMALLEST", 1)


@pytest.fixture(params=["by and by", "at once"])
def filling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "at once":
        monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    return str(request.param)


@pytest.fixture(params=long_but(("beside", "at once"), ("by and by", "beside", "at once")))
def any_filling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By idle cores too, to which a handful of samples is worth a fork then."""
    if request.param == "beside":
        monkeypatch.setattr(filler, "WORTH_FILLING_BESIDE", 0.0)
    elif request.param == "at once":
        monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    return str(request.param)
