"""Techniques that installed packages bring, by the entry-point group `overdrive.techniques`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = '''
from overdrive.core.contract import Contract
from overdrive.techniques.technique import Technique

class Quicker(Technique):
    """Goes quicker.

    What it does: nothing.
    """

    name = "quicker"
    family = "host"
    contract = Contract.EXACT
    targets = ("other",)

class Threads(Technique):
    """Takes a name that is taken."""

    name = "threads"
    contract = Contract.EXACT
    targets = ("other",)
'''


def installed(folder: Path, points: str) -> dict[str, str]:
    """The environment of a process that has the package."""
    (folder / "speedy.py").write_text(PACKAGE)
    (folder / "speedy_broken.py").write_text("raise RuntimeError('made for another version')")
    info = folder / "speedy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speedy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[overdrive.techniques]\n{points}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


def overdrive(environment: dict[str, str], *line: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overdrive", "techniques", *line]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("point", ["speedy:Quicker", "speedy"])
def test_a_packages_technique_is_shown_with_where_it_comes_from(tmp_path: Path, point: str) -> None:
    environment = installed(tmp_path, f"one = {point}")
    listed, card = overdrive(environment), overdrive(environment, "quicker")
    assert listed.returncode == card.returncode == 0
    assert "Goes quicker. (from speedy)" in listed.stdout
    assert "family host, contract exact, from speedy" in card.stdout
    assert ("there is a technique threads already" in listed.stderr) == (point == "speedy")


def test_what_cannot_be_imported_is_named_and_left_out(tmp_path: Path) -> None:
    points = "one = speedy:Quicker\ntwo = speedy_broken\nthree = speedy:PACKAGES"
    found = overdrive(installed(tmp_path, points))
    assert found.returncode == 0 and "quicker" in found.stdout and "threads" in found.stdout
    assert "two from speedy is left out (RuntimeError: made for another version)" in found.stderr
    assert "three from speedy is left out (AttributeError" in found.stderr
