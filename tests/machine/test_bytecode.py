"""Frameworks that Python compiles at every start."""

from __future__ import annotations

import importlib
import py_compile
from pathlib import Path

import pytest

from overdrive.machine import frameworks
from overdrive.machine.rules import environment, software
from overdrive.machine.rules.finding import Severity
from tests.machine.recorded import look


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = tmp_path / "a_framework" / "__init__.py"
    module.parent.mkdir()
    module.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(frameworks, "_WITH_BYTECODE", ("a_framework", "one_that_is_not_here"))
    importlib.invalidate_caches()
    return module


def test_a_framework_without_bytecode_is_named(framework: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frameworks.lacks_bytecode() == ("a_framework",)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert frameworks.lacks_bytecode(for_good=True) == ()  # the next start keeps it
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert frameworks.lacks_bytecode(for_good=True) == ("a_framework",)
    py_compile.compile(str(framework))
    assert frameworks.lacks_bytecode() == ()


def test_doctor_says_how_to_compile_it(tmp_path: Path) -> None:
    survey = look("cpu_two_sockets", tmp_path)
    assert not list(software.bytecode(survey))
    survey["environment"] = {"PYTHONDONTWRITEBYTECODE": "1"}
    [told] = environment.table(survey)
    assert told.cost.endswith("Here it makes no difference.")
    survey["software"]["without_bytecode"] = ["torch"]
    [found] = software.bytecode(survey)
    assert found.severity is Severity.ADVICE and found.command.startswith("env -u PYTHONDONTWRITEBYTECODE ")
    [told] = environment.table(survey)
    assert not told.cost.endswith("no difference.")
