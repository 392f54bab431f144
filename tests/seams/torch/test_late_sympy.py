"""Sympy comes late under Overdrive, and what the program was warned of before is not shown once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run

pytest.importorskip("torch")

WARNS = """
import warnings
import torch

optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
for step in range(3):
    warnings.warn("in the loop")
    import sympy
warnings.simplefilter("once")  # as any filter of the program's
warnings.warn("after it")
"""


def test_what_was_shown_before_is_shown_once(script: Callable[[str], Path], python: Run, overdrive: Run) -> None:
    path = script(WARNS)
    expected = python(path.name, cwd=path.parent)
    got = overdrive("run", path.name, cwd=path.parent)
    shown = [line for line in got.stderr.splitlines() if not line.startswith("overdrive:")]
    assert shown == expected.stderr.splitlines() and sum("UserWarning: in the loop" in each for each in shown) == 1
