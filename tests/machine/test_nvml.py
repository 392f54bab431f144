"""NVML is asked for what the rules need; where it is missing or broken, the reason is told."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from overdrive.machine import gpu, loaded, nvml
from overdrive.machine.survey import survey
from tests.machine.recorded import unpack
from tests.machine.recorded_nvml import FIXTURES, Library, package, recorded


def machine(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FIXTURES / name / "nvml.json").read_text())
    return told


def test_the_memory_that_the_driver_keeps_is_not_counted_as_used() -> None:
    asked = []

    class Counting(Library):
        def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any], version: int | None = None) -> Any:
            asked.append(version)
            if version is not None and len(asked) > 1:  # a driver that does not know it
                raise self.NVMLError("Function Not Found")
            return self.__getattr__("nvmlDeviceGetMemoryInfo")(handle)

    told = nvml.read(Counting(machine("broken_port")))
    assert [gpu["memory_used_bytes"] for gpu in told["gpus"]] == [4 * 2**20] * 2
    assert asked == [Library.nvmlMemory_v2, Library.nvmlMemory_v2, None]


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
    assert found["topology"]["gpus"] == [["X", "NV2", "PXB"], ["NV2", "X", "PXB"], ["PXB", "PXB", "X"]]
    assert found["topology"]["nvlinks"][0] == {"active": 2, "inactive": 1, "gb_per_second": 53.1}


def test_a_gpu_that_fell_off_the_bus_is_found(tmp_path: Path) -> None:
    def lose(told: dict[str, Any]) -> None:
        told["devices"][5]["lost"] = "GPU is lost"

    root = unpack("h100x8", tmp_path)
    found = survey(root, {}, load=False, ask_nvml=lambda: recorded("h100x8", lose))
    assert found["nvidia"]["gpus"][5] == {"index": 5, "unreachable": "GPU is lost", "pcie": {}}
    assert found["nvidia"]["gpus"][6]["node"] == 1


def test_names_and_constants_are_those_of_the_package() -> None:
    import pynvml as package

    source = Path(nvml.__file__).read_text()
    functions = set(re.findall(r'"(nvml[A-Z]\w+)"', source)) | set(re.findall(r"library\.(nvml\w+)", source))
    functions |= {f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics")}
    assert len(functions) > 30
    assert [name for name in functions if not hasattr(package, name)] == []
    constants = {name: getattr(Library, name) for name in vars(Library) if name.startswith(("NVML_", "nvmlMemory"))}
    assert constants == {name: getattr(package, name) for name in constants}
    assert package.NVML_VALUE_TYPE_UNSIGNED_INT == nvml._UNSIGNED
    bits = ["HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"]
    assert {getattr(package, f"nvmlClocksEventReason{bit}") for bit in bits} == set(nvml._FAULTS.values())
    assert (package.NVML_NVLINK_DEVICE_TYPE_GPU, package.NVML_NVLINK_DEVICE_TYPE_SWITCH) == (0, 2)


@pytest.mark.parametrize(
    ("init", "why"),
    [
        ("raise NVMLError('Driver Not Loaded')", "NVML: Driver Not Loaded"),
        ("raise ImportError('no module')", "gave no answer"),
        ("import os; os.kill(os.getpid(), 9)", "gave no answer"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_broken_driver_is_no_failure_and_the_reason_is_told(
    init: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", package(tmp_path, init))
    monkeypatch.setattr(nvml, "_WAIT_SECONDS", 0.6 if "sleep" in init else 20.0)
    answer = nvml.nvml()
    assert list(answer) == ["why"] and why in answer["why"]
    root = unpack("h100x8", tmp_path / "root")
    found = survey(root, {}, load=False, ask_nvml=nvml.nvml)
    assert found["nvidia"] is None and {"what": "NVIDIA GPUs", "why": answer["why"]} in found["left_out"]
    monkeypatch.setattr(gpu, "_DEVICES", (str(tmp_path),))
    gpu.gpus.cache_clear()
    try:
        assert gpu.gpus() == () and gpu.memory_in_use() == 0
    finally:
        gpu.gpus.cache_clear()


def test_the_package_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError('No module named pynvml')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert nvml.nvml() == {"why": "the package nvidia-ml-py is missing (No module named pynvml)"}


def test_the_child_process_hands_over_what_the_library_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", package(tmp_path, "pass", "workstation_x4"))
    assert nvml.nvml() == recorded("workstation_x4")


def test_a_driver_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded.answer_of("import time; time.sleep(60)", None, wait=0.3) is None
