"""How a run begins again: with variables that must be there first, or without what the program failed under."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.commands.beginning import Beginning

PLAN: list[Any] = [("keras_backend", {"backend": "jax"}), ("onednn", {})]


class Replaced(Exception):
    """In the place of the process that would be there now."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Calls something that begins again, and goes on as the process that would be there then."""

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        assert path == sys.executable and command[-4:] == ["-m", "overdrive", "run", "train.py"]
        monkeypatch.setattr(os, "environ", dict(environment))
        raise Replaced

    def call(act: Callable[..., None], *given: Any) -> None:
        with pytest.raises(Replaced):
            act(*given)

    monkeypatch.setattr(os, "environ", {"KERAS_BACKEND": "torch", "HOME": "/home/me"})
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: None)
    monkeypatch.setattr(sys, "argv", ["overdrive", "run", "train.py"])
    monkeypatch.setattr("overdrive.techniques.compile.keras_backend.find_spec", lambda name: True)
    return call


def test_it_begins_again_with_the_variables_that_are_missing_and_once(replaced: Callable[..., None]) -> None:
    replaced(Beginning().again_with_environment, PLAN)
    assert os.environ["KERAS_BACKEND"] == "jax" and os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"
    second = Beginning()
    assert not any("OVERDRIVE" in name for name in os.environ)  # the program sees none of it
    os.environ["KERAS_BACKEND"] = "tensorflow"  # by sitecustomize, say
    second.again_with_environment(PLAN)
    assert second.left_out == {}


def test_it_begins_again_as_if_a_technique_had_not_been_chosen(
    replaced: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    replaced(Beginning().again_with_environment, PLAN)
    second = Beginning()
    os.environ["CHANGED"] = "by the program"
    sys.argv = ["train.py"]
    monkeypatch.chdir("/")
    replaced(second.again_without, {"keras_backend": "it failed"})
    assert os.environ["KERAS_BACKEND"] == "torch" and "TF_ENABLE_ONEDNN_OPTS" not in os.environ
    assert "CHANGED" not in os.environ and os.getcwd() == str(tmp_path)
    sys.argv = ["overdrive", "run", "train.py"]
    third = Beginning()
    assert third.left_out == {"keras_backend": "it failed"}
    replaced(third.again_with_environment, PLAN[1:])
    assert os.environ["KERAS_BACKEND"] == "torch" and os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert Beginning().left_out == {"keras_backend": "it failed"}
