"""What is installed of a library decides, not its version alone."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overdrive.changes import library_versions
from overdrive.changes.fingerprint import fingerprint
from overdrive.changes.library_versions import version_of

NAME = "overdrive_tests_own"
SETS = f"from {NAME}.steps import grown\nclass Own:\n    def sample(self, index):\n        return grown(index)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site-packages"
    (folder / NAME).mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget()


def forget() -> None:
    """As a new process finds it."""
    for name in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[name]
    importlib.invalidate_caches()
    library_versions._version.cache_clear()


def install(folder: Path, steps: str, script: str = "", recorded: bool = True) -> None:
    """As pip does it, always under one version."""
    forget()
    files = {f"{NAME}/__init__.py": "", f"{NAME}/sets.py": SETS, f"{NAME}/steps.py": steps}
    lines = [f"../../bin/own,sha256={script},10", f"{NAME}/__pycache__/sets.cpython.pyc,,"]
    for name, text in files.items():
        (folder / name).write_text(text)
        lines.append(f"{name},sha256={hashlib.sha256(text.encode()).hexdigest()},{len(text)}")
    if recorded:
        note = folder / f"{NAME}-0.1.0.dist-info"
        note.mkdir(exist_ok=True)
        (note / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: 0.1.0\n")
        (note / "RECORD").write_text("\n".join(lines) + "\n")


def seen(folder: Path) -> str:
    module: Any = importlib.import_module(f"{NAME}.sets")
    assert module.__file__.startswith(str(folder))
    return fingerprint(module.Own()).digest


ONE, OTHER = (f"def grown(index):\n    return index + {more}\n" for more in (1, 2))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_project_that_is_installed_again_under_its_version_is_another(folder: Path, recorded: bool) -> None:
    """A data set's transforms were edited, and the samples of before served: `pip install .` leaves the version."""
    install(folder, ONE, recorded=recorded)
    first = seen(folder)
    install(folder, ONE, recorded=recorded)
    assert seen(folder) == first
    install(folder, OTHER, recorded=recorded)
    assert seen(folder) != first


def test_where_it_is_installed_does_not_count(folder: Path) -> None:
    install(folder, ONE, script="of one Python")
    first = version_of(f"{NAME}.sets")
    install(folder, ONE, script="of another")
    assert version_of(f"{NAME}.sets") == first and "0.1.0" in first


def test_a_large_package_without_a_record_counts_by_its_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_versions, "_MOST_READ", 2)
    install(folder, ONE, recorded=False)
    first = seen(folder)
    install(folder, OTHER, recorded=False)
    assert seen(folder) == first


def test_what_is_no_package_has_a_version_as_well() -> None:
    assert version_of("os.path") == f"os.path {sys.version}"
    assert version_of("") == " none"
    assert version_of("there_is_no_such") == "there_is_no_such none "
