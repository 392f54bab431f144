"""Programs as people wrote them, moved to a device that refuses what a GPU refuses: they print what they print."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session
from tests.conftest import PROGRAMS
from tests.techniques.device.standin import There

COMMANDS = (
    ("gan.py", "--steps", "6"),
    ("lstm_stateful.py", "--epochs", "1"),
    ("chargpt_memmap.py", "--steps", "8", "--eval_iters", "1"),
    ("timeseries_lbfgs.py", "--steps", "1"),
    ("reinforce.py", "--episodes", "3"),
    ("vae.py", "--epochs", "1"),
    ("dict_collate.py", "--epochs", "1"),
    ("weight_tied_ema.py", "--steps", "10"),
    ("functional_params.py", "--steps", "10"),
    ("checkpoint_resume.py", "--epochs", "1"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_program_trains_there_and_prints_the_same(
    command: tuple[str, ...], capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = There()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # else these programs go to a real one themselves
    monkeypatch.setattr(type(catalogue()["device"]), "place", staticmethod(lambda: place))
    printed = []
    for moved in (False, True):
        folder = tmp_path / str(moved)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [*command])
        if not moved:
            runpy.run_path(str(PROGRAMS / command[0]), run_name="__main__")
        else:
            with place, Session([("device", {})]) as session:
                runpy.run_path(str(PROGRAMS / command[0]), run_name="__main__")
            assert not session.seams.left_out
        printed.append(capsys.readouterr().out)
    assert printed[0] and printed[1] == printed[0]
    assert place.operations > 100
