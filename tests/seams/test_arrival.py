"""Who waits for a module is told of it, whoever else waits for the same."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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


class _Served(MetaPathFinder, Loader):
    """One loader for all specs, as that of a nursery."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == "served" else None

    def exec_module(self, module: ModuleType) -> None:
        module.told = "executed"  # type: ignore[attr-defined]


def test_who_looks_whether_a_module_is_there_does_not_have_it_arrive_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`evaluate` and `transformers` look for PyTorch before they import it: its seams were entered three times."""
    monkeypatch.setattr(sys, "meta_path", [_Served(), *sys.meta_path])
    told: list[str] = []
    waiting = Arrival("served", lambda: told.append(sys.modules["served"].told))
    waiting.watch()
    try:
        for _ in range(3):
            assert importlib.util.find_spec("served") is not None
        importlib.import_module("served")
    finally:
        waiting.stop()
        sys.modules.pop("served", None)
    assert told == ["executed"]
