"""Who waits for a module is told of it, whoever else waits for the same."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

from overdrive.seams.arrival import Arrival


def test_all_that_wait_for_a_module_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of a run that survives has two that wait for safetensors: its import was an error."""
    (tmp_path / "awaited_by_three.py").write_text("there = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[int] = []
    before = list(sys.meta_path)
    for number in range(3):
        Arrival("awaited_by_three", partial(told.append, number)).watch()
    module = importlib.import_module("awaited_by_three")
    monkeypatch.delitem(sys.modules, "awaited_by_three")
    assert module.there and sorted(told) == [0, 1, 2]
    assert sys.meta_path == before and "exec_module" not in vars(module.__spec__.loader)
