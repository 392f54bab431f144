"""What is claimed of a design: only of inputs that took no part in the search, and only within the margin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.machine.energy import EnergyMeter
from overdrive.targets.child import timing
from overdrive.targets.fpga.page import readme
from overdrive.targets.fpga.verdict import Designed, verdict
from overdrive.targets.order import ANSWERS, DESIGN, TIMES
from tests.machine.test_energy import zone


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


@pytest.mark.parametrize(("number", "told"), [(np.nan, "not finite"), (-np.inf, "not finite"), (1e200, "too large")])
@pytest.mark.parametrize("whose", ["own", "emulated"])
def test_answers_that_cannot_be_compared_are_no_design(whose: str, number: float, told: str, tmp_path: Path) -> None:
    """They were "0.00% of their size off"."""
    found(tmp_path, 2000, 0, classes=0)
    with np.load(tmp_path / ANSWERS) as kept:
        answers = dict(kept)
    answers[whose][1] = number
    np.savez(tmp_path / ANSWERS, **answers)
    result = verdict(tmp_path, tmp_path, "Net", (), {"hls4ml": "1"})
    assert isinstance(result, str) and told in result


def test_times_and_energy_of_the_programs_own_calls_stand_beside_the_design(tmp_path: Path) -> None:
    found(tmp_path, 2000, 3)
    told = json.loads((tmp_path / DESIGN).read_text())
    rtl = {"inputs": 9, "latency": 8, "interval": 1, "clock": 2e8, "luts": 7, "registers": 5, "verilator": "5"}
    (tmp_path / DESIGN).write_text(json.dumps({**told, "rtl": rtl}))
    times = [{"rows": 1, "seconds": [[1e-3, 2e-3]]}, {"rows": 50, "seconds": [[1e-3, 2e-3]], "joules": 0.0105}]
    (tmp_path / TIMES).write_text(json.dumps(times))
    result = verdict(tmp_path, tmp_path, "Net", (), {"hls4ml": "1", "da4ml": "2"})
    assert isinstance(result, Designed) and [each.joules for each in result.own] == [None, 0.0105]
    one, many = [line for line in readme(result, "train.py").splitlines() if "the program on the machine" in line]
    assert one.endswith("| not known |") and many.endswith("| 210 µJ, by the processor's packages |")


def test_energy_is_counted_by_the_processor_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_COUNTED_SECONDS", 0.0)
    with EnergyMeter(tmp_path, with_gpus=False) as meter:
        assert timing.joules_of(lambda: None, meter) is None
    monkeypatch.setattr(timing, "_COUNTED_SECONDS", 0.05)
    counter, calls = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000), 0

    def call() -> None:
        nonlocal calls
        calls += 1
        counter.write_text(str(1_000_000 + 500 * calls))

    with EnergyMeter(tmp_path, with_gpus=False) as meter:
        assert timing.joules_of(call, meter) == pytest.approx(5e-4)
