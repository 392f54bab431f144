"""What NVML tells is what nvidia-smi tells, in the same units; either does without the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from overdrive.machine import gpu, loaded, nvml
from overdrive.machine.nvidia import nvidia
from overdrive.machine.nvml import completed
from overdrive.machine.survey import survey
from overdrive.machine.topology import topology
from tests.machine.recorded import smi, unpack
from tests.machine.recorded_nvml import Library, recorded

MACHINES = ("h100x8", "workstation_x4", "mig_slice")


@pytest.mark.parametrize("name", MACHINES)
def test_nvml_tells_what_nvidia_smi_tells(name: str) -> None:
    by_nvml, by_smi = recorded(name), nvidia(smi(name))
    assert by_nvml is not None and by_smi is not None
    assert (by_nvml["driver"], by_nvml["cuda"]) == (by_smi["driver"], by_smi["cuda"])
    assert len(by_nvml["gpus"]) == len(by_smi["gpus"])
    for one, other in zip(by_nvml["gpus"], by_smi["gpus"], strict=True):
        shared = one.keys() & other.keys()
        assert {key: one[key] for key in shared} == {key: other[key] for key in shared}
        assert other.keys() - one.keys() <= {"memory_bytes"}  # which a slice may not ask of the whole GPU


def test_the_links_between_gpus() -> None:
    by_nvml, by_smi = recorded("h100x8"), topology(smi("h100x8"))
    assert by_nvml is not None and by_smi is not None
    assert by_nvml["topology"]["gpus"] == by_smi["gpus"]
    assert by_nvml["topology"]["nvlinks"] == by_smi["nvlinks"]


def test_links_from_gpu_to_gpu_and_none() -> None:
    def joined(told: dict[str, Any]) -> None:
        del told["devices"][3:]
        buses = [device["bus"] for device in told["devices"]]
        to = {buses[0]: buses[1], buses[1]: buses[0]}
        for device in told["devices"]:
            device["nvmlDeviceGetNvLinkState"] = {"0": 1, "1": 1, "2": 0}
            device["nvmlDeviceGetNvLinkRemoteDeviceType"] = {"0": 0, "1": 0}
            far = {"busId": to.get(device["bus"], "00000000:FF:00.0")}
            device["nvmlDeviceGetNvLinkRemotePciInfo"] = {"0": far, "1": far}
            device["nvmlDeviceGetTopologyCommonAncestor"] = 20

    found = recorded("h100x8", joined)
    assert found is not None
    assert found["topology"]["gpus"] == [["X", "NV2", "PXB"], ["NV2", "X", "PXB"], ["PXB", "PXB", "X"]]
    assert found["topology"]["nvlinks"][0] == {"active": 2, "inactive": 1, "gb_per_second": 53.1}


def test_a_gpu_that_fell_off_the_bus_is_found(tmp_path: Path) -> None:
    def lose(told: dict[str, Any]) -> None:
        told["devices"][5]["lost"] = "GPU is lost"

    root = unpack("h100x8", tmp_path)
    found = survey(root, {}, lambda words: None, load=False, ask_nvml=lambda: recorded("h100x8", lose))
    assert found["nvidia"]["told_by"] == ["NVML"]
    assert found["nvidia"]["gpus"][5] == {"index": 5, "unreachable": "GPU is lost", "pcie": {}}
    assert found["nvidia"]["gpus"][6]["node"] == 1


def test_each_completes_the_other() -> None:
    by_smi = nvidia(smi("h100x8"))
    assert completed(None, None) is None
    assert completed(None, by_smi) == {**(by_smi or {}), "told_by": ["nvidia-smi"]}
    few = {"driver": "1", "gpus": [{"index": 0, "bus": "0000:1b:00.0", "name": "Other", "pcie": {"lanes": 8}}]}
    both = completed(few, by_smi)
    assert both is not None
    assert (len(both["gpus"]), both["driver"], both["cuda"], both["told_by"]) == (
        8,
        "1",
        "13.0",
        ["NVML", "nvidia-smi"],
    )
    assert (both["gpus"][0]["name"], both["gpus"][0]["ecc"]) == ("Other", True)
    assert (both["gpus"][0]["pcie"]["lanes"], both["gpus"][0]["pcie"]["most_lanes"]) == (8, 16)


def test_names_and_constants_are_those_of_the_package() -> None:
    package = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (an optional extra)")
    source = Path(nvml.__file__).read_text()
    functions = set(re.findall(r'"(nvml[A-Z]\w+)"', source)) | set(re.findall(r"library\.(nvml\w+)", source))
    functions |= {f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics")}
    assert len(functions) > 30
    assert [name for name in functions if not hasattr(package, name)] == []
    constants = {name: getattr(Library, name) for name in vars(Library) if name.startswith("NVML_")}
    assert constants == {name: getattr(package, name) for name in constants}
    assert package.NVML_VALUE_TYPE_UNSIGNED_INT == nvml._UNSIGNED
    bits = ["HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"]
    assert [getattr(package, f"nvmlClocksEventReason{bit}") for bit in bits] == [0x8, 0x20, 0x40, 0x80]
    assert (package.NVML_NVLINK_DEVICE_TYPE_GPU, package.NVML_NVLINK_DEVICE_TYPE_SWITCH) == (0, 2)


def test_a_machine_without_a_driver_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_START", "import sys; sys.exit('Driver Not Loaded')")
    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: object())
    assert nvml.nvml() is None


def test_a_driver_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded.answer_of("import time; time.sleep(60)", None, wait=0.3) is None


def test_without_the_command_the_library_gives_the_same_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "nvml", lambda: recorded("workstation_x4"))
    assert gpu._by_nvml() == [] or gpu._DEVICES  # no device here, as a rule: it is not even asked
    monkeypatch.setattr(gpu, "_DEVICES", (str(tmp_path),))
    gpu.gpus.cache_clear()
    try:
        assert gpu.gpus() == (
            {
                "name": "NVIDIA GeForce RTX 4090",
                "memory_bytes": 24564 * 2**20,
                "driver": "570.133.07",
                "compute_capability": "8.9",
                "power_limit_watts": 450.0,
                "most_sm_mhz": 3120,
            },
        )
        assert gpu.memory_in_use() == 1210 * 2**20
    finally:
        gpu.gpus.cache_clear()
