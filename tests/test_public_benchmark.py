"""The benchmark on public scripts: what it writes down."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "public"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    spec = importlib.util.spec_from_file_location("public_run", FOLDER / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "public_run", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def to(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the table goes. There is one program, whose tune at `rounding` is made."""
    record = tmp_path / "one" / run.RECORD
    record.parent.mkdir()
    record.write_text('{"data": ""}')
    program: Any = {"folder": ".", "script": "train.py", "arguments": [], "needs": [], "steps": 0}
    monkeypatch.setattr(run, "programs", lambda: {"one": program})
    monkeypatch.setattr(run, "cores_of_others", lambda: 0.0)
    to = tmp_path / "public.json"
    monkeypatch.setattr(sys, "argv", ["run.py", "--from", str(tmp_path), "--to", str(to), "--parts", "rounding"])
    return to


@pytest.mark.parametrize("code", [130, 143, -2, -15])
def test_a_tune_that_was_stopped_is_no_row(
    code: int, run: ModuleType, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run, "subprocess", SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=code, stderr="x"), PIPE=0)
    )
    with pytest.raises(SystemExit, match="was stopped; nothing is written down"):
        run.main()
    assert not to.exists()


def test_whole_runs_go_with_the_plan_that_they_were_of(
    run: ModuleType, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to.write_text('{"one": {"rounding": {}, "whole": {"speedup": null}, "whole_statistical": {"speedup": null}}}')
    monkeypatch.setattr(run, "tune", lambda *_: {"refused": "no optimizer"})
    run.main()
    assert sorted(json.loads(to.read_text())["one"]) == ["rounding", "whole_statistical"]
    assert "refused: no optimizer" in to.with_suffix(".md").read_text()


def test_one_that_was_refused_is(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = run.Place("one", {"folder": ".", "script": "train.py", "arguments": []}, tmp_path, "rounding")
    done = SimpleNamespace(returncode=1, stderr="overdrive: no optimizer")
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(run=lambda *_, **__: done, PIPE=0))
    assert run.tune("rounding", 5, place)["refused"] == "overdrive: no optimizer"
