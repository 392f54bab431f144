"""AMD's GPUs from the kernel's files, and what doctor says of them. The trees are synthesised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from overdrive.cli.doctor import examine
from overdrive.machine import inventory
from overdrive.machine.amd import _architecture, amd
from overdrive.machine.rules.apply import apply_rules
from tests.machine.recorded import look, unpack

ROCM = {"version": "2.13.0+rocm7.0", "cuda": None, "hip": "7.0", "xpu": None, "debug": False}


def rules(found: dict[str, Any], severity: str = "wrong") -> dict[str, str]:
    """What is said of AMD's GPUs, by rule."""
    findings, failed = apply_rules(found)
    assert failed == []
    return {each.rule: each.what for each in findings if each.severity.value == severity}


def test_eight_gpus(tmp_path: Path) -> None:
    found = look("mi300x8", tmp_path)
    assert found["nvidia"] is None and [part for part in found["left_out"] if "NVIDIA" in part["what"]] == []
    told = found["amd"]
    assert (told["rocm"], told["kfd"], told["render"], told["xgmi"]) == ("6.4.1-83", "yes", "yes", "all")
    assert [gpu["bus"][5:7] for gpu in told["gpus"]] == ["05", "26", "46", "65", "85", "a6", "c6", "e5"]
    assert told["gpus"][7] == {
        "index": 7,
        "name": "AMD Instinct MI300X OAM",
        "bus": "0000:e5:00.0",
        "architecture": "gfx942",
        "memory_bytes": 206141652992,
        "memory_used_bytes": 297848832,
        "busy_percent": 0,
        "sm_mhz": 132,
        "most_sm_mhz": 2100,
        "clocks_held": "auto",
        "power_limit_watts": 750,
        "default_power_limit_watts": 750,
        "most_power_limit_watts": 750,
        "temperature_celsius": 41,
        "uncorrected_errors": 0,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "partitions": 1,
        "node": 1,
        "local_cores": "96-191,288-383",
        "pcie": {
            "generation": 5,
            "most_generation": 5,
            "lanes": 16,
            "most_lanes": 16,
            "slot_generation": 5,
            "slot_lanes": 16,
            "replays": 0,
        },
    }
    assert rules(found) == {} and rules(found, "advice") == {}


def test_a_card_with_a_switch_of_its_own_in_a_container(tmp_path: Path) -> None:
    """The link that counts is the switch's, not that between the switch and the chip, which has all sixteen lanes."""
    found = look("radeon_container", tmp_path)
    gpu = found["amd"]["gpus"][0]
    assert (gpu["architecture"], gpu["name"], gpu["temperature_celsius"]) == ("gfx1100", "AMD GPU 0x744c", 52)
    assert (gpu["pcie"]["lanes"], gpu["pcie"]["most_lanes"], gpu["pcie"]["slot_lanes"]) == (8, 16, 8)
    assert gpu["slot_side_bus"] == "0000:01:00.0"
    assert "8 of its 16" in rules(found)["amd_pcie_lanes"]
    assert "amd_not_given" not in rules(found)  # nobody wants to compute there
    found["software"]["torch"] = ROCM
    assert "/dev/kfd is not there" in rules(found)["amd_not_given"]
    assert examine(found).machine["amd"]["kfd"] == "absent"


def test_devices_that_this_user_may_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("kfd"))
    found = look("mi300x8", tmp_path)
    found["software"]["torch"] = ROCM
    assert "may not use /dev/kfd" in rules(found)["amd_no_permission"]


def written(root: Path, place: str, text: str) -> None:
    (root / "sys/bus/pci/devices/0000:26:00.0" / place).write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "severity", "rule", "words"),
    [
        ("ras/umc_err_count", "ue: 3\nce: 9\n", "wrong", "amd_fault", "AMD GPU 1 is not sound: 3 errors"),
        ("power_dpm_force_performance_level", "low\n", "wrong", "amd_clocks_held", "AMD GPU 1: held"),
        ("hwmon/hwmon4/power1_cap", "450000000\n", "wrong", "amd_power_cap", "AMD GPU 1 may draw 450 W; as made, 750"),
        ("current_link_width", "8\n", "wrong", "amd_pcie_lanes", "AMD GPU 1 is joined by 8 of its 16"),
        ("gpu_busy_percent", "97\n", "advice", "amd_taken", "AMD GPU 1 is in use by others: 97 % busy"),
        ("current_compute_partition", "CPX\n", "note", "amd_partitions", "AMD GPU 1: cut into"),
    ],
)
def test_one_fault_on_a_sound_machine(
    file: str, text: str, severity: str, rule: str, words: str, tmp_path: Path
) -> None:
    from overdrive.machine.survey import survey

    root = unpack("mi300x8", tmp_path)
    written(root, file, text)
    found = survey(root, {}, load=False)
    found["software"] = {"versions": {}}
    said = rules(found, severity)
    assert words in said[rule]
    assert {name for name in said if name.startswith("amd_")} == {rule}


def test_partitions_are_one_gpu(tmp_path: Path) -> None:
    root = unpack("mi300x8", tmp_path)
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number in range(10, 17):  # seven more of the first GPU
        (nodes / str(number)).mkdir()
        (nodes / str(number) / "properties").write_text((nodes / "2/properties").read_text())
    found = amd(root)
    assert found is not None
    assert (len(found["gpus"]), found["gpus"][0]["partitions"], found["gpus"][1]["partitions"]) == (8, 8, 1)
    assert found["xgmi"] == "all"


def test_a_missing_xgmi_link_is_told(tmp_path: Path) -> None:
    root = unpack("mi300x8", tmp_path)
    for place in (root / "sys/class/kfd/kfd/topology/nodes").glob("[2-9]/io_links/*/properties"):
        if {"node_from 2", "node_to 3"} <= set(place.read_text().splitlines()) or {
            "node_from 3",
            "node_to 2",
        } <= set(place.read_text().splitlines()):
            place.unlink()
    found = amd(root)
    assert found is not None and found["xgmi"] == "some"


def test_kernels_for_another_gpu(tmp_path: Path) -> None:
    found = look("mi300x8", tmp_path)
    found["software"]["torch"] = ROCM
    found["loaded"] = {"torch": {"architectures": ["gfx90a:xnack-", "gfx1100"]}}
    assert "no kernels for All 8 AMD GPUs (gfx942); it was built for gfx1100 gfx90a" in rules(found)["amd_no_kernels"]
    for gpu in found["amd"]["gpus"][1:]:  # of those that the container may not use, nothing can be read
        del gpu["architecture"]
    assert "no kernels for AMD GPU 0 (gfx942)" in rules(found)["amd_no_kernels"]
    found["loaded"] = {"torch": {"architectures": ["gfx90a", "gfx942"]}}
    assert rules(found) == {}


def test_hidden_gpus(tmp_path: Path) -> None:
    found = look("mi300x8", tmp_path, {"HIP_VISIBLE_DEVICES": "-1", "AMD_SERIALIZE_KERNEL": "3"})
    assert set(rules(found)) == {"environment_amd_serialize_kernel"}
    found["software"]["torch"] = ROCM
    assert set(rules(found)) == {"environment_amd_serialize_kernel", "amd_hidden"}


@pytest.mark.parametrize(("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110501, "gfx1151")])
def test_names_of_architectures(version: int, name: str) -> None:
    assert _architecture(version) == name


def test_the_fingerprint_knows_amds_gpus(tmp_path: Path) -> None:
    plain = inventory.fingerprint(tmp_path)
    root = unpack("mi300x8", tmp_path)
    assert len([gpu for gpu in inventory.machine(root)["gpus"] if gpu.get("architecture") == "gfx942"]) == 8
    fingerprints = {plain, inventory.fingerprint(root)}
    written(root, "mem_info_vram_used", "9")
    assert fingerprints == {plain, inventory.fingerprint(root)}


def test_no_amd_gpu_is_none(tmp_path: Path) -> None:
    assert amd(tmp_path) is None
    assert look("h100x8", tmp_path)["amd"] is None
