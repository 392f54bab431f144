"""What is said to bring a library is a command that works where nothing of ours is on an index."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from overdrive.core import installing
from overdrive.core.installing import CLONE, package_of, pip_install, pip_install_extra


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


def test_a_module_may_come_from_a_package_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "onnxruntime-gpu":
            raise PackageNotFoundError(name)
        return "1.23.2"

    monkeypatch.setattr(installing, "version", version)
    brought = {"onnxruntime": ["damaged", "onnxruntime-gpu"]}
    monkeypatch.setattr(installing, "packages_distributions", lambda: brought)
    assert package_of("onnxruntime") == ("onnxruntime-gpu", "1.23.2")
    assert package_of("pytest") == ("pytest", pytest.__version__)
    assert package_of("not_there") == ("not_there", "")


def test_nothing_of_ours_is_asked_of_an_index() -> None:
    named = [path for path in (CLONE / "src").rglob("*.py") if "install 'overdrive" in path.read_text()]
    assert not named
