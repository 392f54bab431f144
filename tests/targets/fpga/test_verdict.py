"""What is claimed of a design: only of inputs that took no part in the search, and only within the margin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.targets.fpga.verdict import Designed, verdict
from overdrive.targets.order import ANSWERS, DESIGN, TIMES


def found(folder: Path, count: int, differ: int, classes: int = 3, off: float = 0.0) -> Designed | str:
    own = np.random.default_rng(0).normal(size=(count, 3))
    emulated = own * (1 + off)
    tested = np.arange(count) % 2 == 1
    emulated[np.flatnonzero(tested)[:differ]] = -own[np.flatnonzero(tested)[:differ]]
    emulated[~tested] = -own[~tested]  # of these nothing is claimed
    np.savez(folder / ANSWERS, own=own, emulated=emulated, tested=tested)
    told: dict[str, Any] = {"classes": classes, "margin": 0.01, "error": 0.01, "backend": "Vitis", "layers": []}
    (folder / DESIGN).write_text(json.dumps({**told, "rtl": {"left_out": "it is not there"}}))
    (folder / TIMES).write_text("[]")
    return verdict(folder, folder, "Net", (), {"hls4ml": "1"})


def test_classes_that_agree_within_the_margin(tmp_path: Path) -> None:
    result = found(tmp_path, 2000, 3)
    assert isinstance(result, Designed) and result.differ == 3 and result.tested == 1000
    assert 0.003 < result.bound < 0.01


@pytest.mark.parametrize(
    ("count", "differ", "classes", "off", "told"),
    [
        (2000, 6, 3, 0.0, "6 of 1,000 inputs"),
        (500, 0, 3, 0.0, "takes 299 of them"),
        (2000, 0, 0, 0.02, "2.00% of their size off"),
        (20, 0, 0, 0.0, "only 10 inputs"),
    ],
)
def test_what_is_not_established_is_no_design(
    count: int, differ: int, classes: int, off: float, told: str, tmp_path: Path
) -> None:
    result = found(tmp_path, count, differ, classes, off)
    assert isinstance(result, str) and told in result
