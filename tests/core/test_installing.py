"""What is said to bring a library is a command that works where nothing of ours is on an index."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from overdrive.core import installing
from overdrive.core.installing import CLONE, pip_install, pip_install_extra


def test_it_is_for_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/a b/python")
    assert pip_install("torchao") == "'/a b/python' -m pip install torchao"


def test_a_clone_brings_its_extras_and_a_wheel_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shlex.split(pip_install_extra("serve"))[-2:] == ["-e", f"{CLONE}[serve]"]
    monkeypatch.setattr(installing, "CLONE", tmp_path)
    asked = [
        "click>=8.1",
        'uvicorn>=0.30; extra == "serve"',
        "starlette; extra == 'serve'",
        'ray[train]; extra == "ray"',
    ]
    monkeypatch.setattr(installing, "requires", lambda name: asked)
    assert shlex.split(pip_install_extra("serve"))[4:] == ["uvicorn>=0.30", "starlette"]
    assert shlex.split(pip_install_extra("ray"))[4:] == ["ray[train]"]


def test_nothing_of_ours_is_asked_of_an_index() -> None:
    named = [path for path in (CLONE / "src").rglob("*.py") if "install 'overdrive" in path.read_text()]
    assert not named
