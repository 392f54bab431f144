"""The machine's energy counters: read where they are there, and nothing made up where they are not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from overdrive.machine import energy
from overdrive.machine.energy import GPUS, PACKAGES, EnergyMeter, of_gpus


def zone(root: Path, name: str, kind: str, microjoules: int) -> Path:
    folder = root / "sys" / "class" / "powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text("262143328850\n")
    return folder / "energy_uj"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "gpus", lambda: ())


def test_packages_are_counted_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    one = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    two = zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000)
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    one.write_text("9000000")
    two.write_text("8500000")
    core.write_text("9000000000")
    assert meter.parts == (PACKAGES,) and meter.between(before, meter.read()) == pytest.approx(5.5)


def test_a_package_that_is_told_of_twice_is_counted_once(tmp_path: Path) -> None:
    counters = [zone(tmp_path, f"{kind}:0", "package-0", 5_000_000) for kind in ("intel-rapl-mmio", "intel-rapl")]
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    for each in counters:
        each.write_text("9000000")
    assert list(before) == [f"{PACKAGES} intel-rapl:0"] and meter.between(before, meter.read()) == pytest.approx(4.0)


def test_a_counter_that_began_again(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 262143328850 - 2_000_000)
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    counter.write_text("3000000")
    assert meter.between(before, meter.read()) == pytest.approx(5.0)


def test_what_cannot_be_read_is_not_made_up(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).parts == ()
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    counter.unlink()
    assert meter.between(before, meter.read()) is None and meter.between({}, {}) is None


class NVMLError(Exception):
    pass


def consumed(handle: int) -> int:
    if handle == 1:
        raise NVMLError("Not Supported")
    return 12_345_678


def test_gpus_that_count_are_told_in_joules() -> None:
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=consumed,
    )
    assert of_gpus(library, [0, 1]) == {"0": pytest.approx(12345.678)}


ANSWERS = "import sys\nfor at, _ in enumerate(sys.stdin): print('{\"0\": %d}' % (100 + 50 * at), flush=True)\n"


def test_gpus_are_asked_in_a_process_and_one_that_dies_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "gpus", lambda: ({"name": "a GPU"},))
    monkeypatch.setattr(energy, "_START", ANSWERS)
    with EnergyMeter(tmp_path) as meter:
        before = meter.read()
        assert meter.parts == (GPUS,) and meter.between(before, meter.read()) == 50.0
        assert meter._child is not None
        meter._child.kill()
        meter._child.wait()
        assert meter.between(before, meter.read()) is None
    monkeypatch.setattr(energy, "_START", "import sys; sys.exit('no driver')")
    with EnergyMeter(tmp_path) as meter:
        assert meter.parts == ()
    monkeypatch.setattr(energy, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(energy, "_START", "import time; time.sleep(60)")
    with EnergyMeter(tmp_path) as meter:
        assert meter.parts == () and meter._child is None
