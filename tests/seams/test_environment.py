"""Variables that a script asks its environment for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overdrive.core.hyperparameters import ENVIRONMENT, ValuePlace
from overdrive.seams import environment

PROGRAM = """
import os
batch = int(os.environ.get("BATCH_SIZE", 64))
rate = float(os.getenv("LR", "1e-3"))
steps = int(os.environ["STEPS"])
os.environ.get("HOME"); os.environ.get("NAME", "resnet"); os.environ.get("AMP", True); os.environ.get("NOTHING")
"A" in os.environ, list(os.environ), dict(os.environ)
try:
    os.environ["NOT_THERE"]
except KeyError:
    missing = True
"""


def test_numbers_that_the_programs_own_lines_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "20")
    monkeypatch.setenv("NOT_ASKED", "3")
    found: dict[str, ValuePlace] = {}
    before = {name: getattr(type(os.environ), name) for name in ("get", "__getitem__")}
    leave = environment.enter(lambda places: found.update({place.name: place for place in places}))
    space: dict[str, object] = {}
    try:
        exec(compile(PROGRAM, str(tmp_path / "train.py"), "exec"), space)
        subprocess.run([sys.executable, "-c", ""], check=True)  # a library's lines ask, too
    finally:
        leave()
    assert (space["batch"], space["rate"], space["steps"], space["missing"]) == (64, 1e-3, 20, True)
    values = {name: place.value for name, place in found.items()}
    assert values == {"BATCH_SIZE": 64, "LR": 1e-3, "STEPS": 20}
    assert [type(each) for each in values.values()] == [int, float, int]
    assert {name: getattr(type(os.environ), name) for name in before} == before


def test_another_value_is_set_and_other_places_are_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.5")
    place = ValuePlace(ENVIRONMENT, "LR", 0.5)
    environment.set_in_environment({place.key: 0.25, "constant|train.py:3|STEPS|5": 6})
    assert os.environ["LR"] == "0.25" and "STEPS" not in os.environ
