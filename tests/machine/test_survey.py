"""The survey reads machines that we do not have, and says something of every machine, however little it tells."""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from overdrive.machine import frameworks, loaded, loaded_tensorflow, storage
from overdrive.machine.pci import link
from overdrive.machine.processors import processors
from overdrive.machine.survey import survey, telling
from tests.machine.recorded import MACHINES, look, unpack
from tests.machine.recorded_nvml import recorded

GIB = 2**30


def test_eight_gpus_and_their_switch(tmp_path: Path) -> None:
    found = look("h100x8", tmp_path)
    cpu, gpus = found["cpu"], found["nvidia"]["gpus"]
    assert (cpu["sockets"], cpu["physical_cores"], cpu["logical_cores"], cpu["granted_cores"]) == (2, 112, 224, 224)
    assert (cpu["vector"], cpu["formats"][0], "AMX bf16" in cpu["formats"]) == ("AVX-512", "bf16", True)
    assert [node["cores"] for node in cpu["memory_nodes"]] == ["0-55,112-167", "56-111,168-223"]
    assert [gpu["node"] for gpu in gpus] == [0] * 4 + [1] * 4
    assert gpus[7]["pcie"] == {
        "generation": 5,
        "system_generation": 5,
        "most_generation": 5,
        "lanes": 16,
        "most_lanes": 16,
        "replays": 0,
        "slot_generation": 5,
        "slot_lanes": 16,
    }
    assert (gpus[0]["memory_bytes"], gpus[0]["power_limit_watts"]) == (81559 * 2**20, 700)
    assert (gpus[0]["compute_capability"], gpus[0]["ecc"], gpus[0]["uncorrected_errors"]) == ("9.0", True, 0)
    topology = found["topology"]
    assert topology["gpus"][0] == ["X"] + ["NV18"] * 7
    ports = {card["root_port"] for card in found["pci"] if card.get("rdma")}
    assert len(ports) == 8 and {gpu["root_port"] for gpu in gpus} == ports  # each GPU shares its switch with a card
    assert topology["nvlinks"][3] == {"active": 18, "inactive": 0, "gb_per_second": 478.1}
    assert {port["gigabits_per_second"] for port in found["network"]["ports"]} == {400.0}
    assert found["network"]["peer_memory_module"] and found["network"]["open_gpu_driver"]
    assert sum(device["use"] == "nvswitch" for device in found["pci"]) == 4


def test_a_slice_in_a_container_has_what_the_container_was_given(tmp_path: Path) -> None:
    found = look("mig_slice", tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (found["cpu"]["granted_cores"], found["cpu"]["allowed_cores"], found["cpu"]["quota_cores"]) == (8, 256, 8.0)
    memory = found["memory"]
    assert (memory["granted_bytes"], memory["available_bytes"]) == (64 * GIB, 55 * GIB)
    assert memory["shared_memory_bytes"] == 64 * 2**20
    gpu = found["nvidia"]["gpus"][0]
    assert gpu["mig"] and gpu["slices"][0]["memory_bytes"] == 9728 * 2**20 and gpu["slices"][0]["multiprocessors"] == 14
    assert found["scheduler"] == {"name": "Kubernetes", "container": "container"}
    assert storage.mount_of("/data/set", tmp_path)["type"] == "nfs4"  # type: ignore[index]


def test_slurm_and_cgroups_of_version_one(tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "16", "SLURM_MEM_PER_NODE": "65536"}
    found = look("cpu_two_sockets", tmp_path, environment)
    assert found["nvidia"] is None and found["topology"] is None
    assert (found["cpu"]["sockets"], found["cpu"]["allowed_list"]) == (2, "0-7")
    assert (found["scheduler"]["cores"], found["scheduler"]["memory_bytes"]) == (16, 64 * GIB)
    assert [place["kind"] for place in found["storage"]] == ["parallel file system", "solid-state disk"]
    assert [(device["use"], device["vendor"]) for device in found["pci"]] == [("fpga", "Xilinx")]


def test_cores_that_are_switched_off_are_none(tmp_path: Path) -> None:
    root = unpack("cpu_two_sockets", tmp_path / "part")
    cores = root / "sys/devices/system/cpu"
    (cores / "online").write_text("0-7\n")
    for core in cores.glob("cpu[0-9]*"):
        if int(core.name[3:]) > 7:
            shutil.rmtree(core / "topology")
    cpu = processors(root)
    assert (cpu["sockets"], cpu["physical_cores"], cpu["logical_cores"], cpu["allowed_cores"]) == (1, 8, 8, 8)
    shutil.rmtree(cores)
    (cores / "cpu0").mkdir(parents=True)  # as where a sandbox stands in for the kernel
    assert "sockets" not in processors(root) and processors(root)["logical_cores"] == 1


def test_a_workstation(tmp_path: Path) -> None:
    found = look("workstation_x4", tmp_path)
    gpu = found["nvidia"]["gpus"][0]
    assert (gpu["pcie"]["lanes"], gpu["pcie"]["most_lanes"], gpu["pcie"]["slot_lanes"]) == (4, 16, 4)
    assert gpu["processes"][0] == {"pid": 1802, "kind": "G", "name": "Xorg", "memory_bytes": 612 * 2**20}
    assert "ecc" not in gpu and "mig" not in gpu  # not told, which is not the same as off
    assert {place["kind"] for place in found["storage"]} == {"spinning disk"}


def test_ports(tmp_path: Path) -> None:
    ports = {port["card"]: port for port in look("broken_port", tmp_path)["network"]["ports"]}
    assert [ports[f"mlx5_{number}"]["state"] for number in range(4)] == ["ACTIVE", "DOWN", "ACTIVE", "INIT"]
    assert (ports["mlx5_2"]["lanes"], ports["mlx5_2"]["errors"]["symbol_error"]) == (1, 48213)
    assert ports["mlx5_0"]["errors"] == {}


def test_this_machine_is_surveyed_and_names_neither_keys_nor_unknown_variables() -> None:
    found = survey(environment={"HOME": "/root", "API_TOKEN": "s3cret", "OMP_NUM_THREADS": "1"}, load=False)
    assert found["environment"] == {"OMP_NUM_THREADS": "1"}
    assert "s3cret" not in json.dumps(found)
    assert 1 <= found["cpu"]["granted_cores"] <= found["cpu"]["logical_cores"]
    assert found["memory"]["memory_bytes"] > 0
    assert [part for part in found["left_out"] if "Error" in part["why"]] == []


def test_neither_serial_numbers_nor_uuids_are_kept(tmp_path: Path) -> None:
    assert "00000000-0000" not in json.dumps(look("h100x8", tmp_path))


@pytest.mark.fault(27)
def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    """As on macOS, without /proc and /sys."""
    found = survey(tmp_path / "missing", {}, load=False)
    assert found["nvidia"] is None and found["pci"] == [] and found["storage"] == []
    assert [part["what"] for part in found["left_out"]] == ["NVIDIA GPUs", "PCI devices", "loaded libraries"]
    json.dumps(found)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.fault(27)
def test_damaged_answers_are_survived(name: str, tmp_path: Path) -> None:
    """Every file of the tree cut, garbled or gone, and every answer of NVML missing, in turns."""
    unpack(name, tmp_path)
    chosen = random.Random(name)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink())
    for turn in range(12):
        for path in chosen.sample(files, len(files) // 4):
            whole = path.read_bytes() if path.exists() else b""
            damage = chosen.choice(("cut", "noise", "gone"))
            if damage == "gone":
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else chosen.randbytes(40))

        def change(told: dict[str, Any], turn: int = turn) -> None:
            for about in (told["system"], told["device"]):
                for name in chosen.sample(sorted(about), len(about) * turn // 12):
                    del about[name]

        environment = {"SLURM_JOB_ID": "x", "SLURM_CPUS_PER_TASK": "?"}
        found = survey(tmp_path, environment, load=False, ask_nvml=lambda change=change: recorded(name, change))
        assert [part for part in found["left_out"] if "Error" in part["why"]] == []
        json.dumps(found)


def test_a_link_that_tells_nonsense_is_not_told(tmp_path: Path) -> None:
    place = tmp_path / "0000:00:01.0" / "0000:01:00.0"
    place.mkdir(parents=True)
    for name, text in {"current_link_speed": "Unknown", "current_link_width": "255", "max_link_width": "16"}.items():
        (place / name).write_text(text)
    assert link(place)["lanes"] is None and link(place)["generation"] is None and link(place)["most_lanes"] == 16


def test_builds_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.13.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n"
        "hip: Optional[str] = None\nraise SystemExit('this is not to be run')\n"
    )
    assert frameworks.torch_build(tmp_path) == {
        "version": "2.13.0+cu130",
        "cuda": "13.0",
        "hip": None,
        "xpu": None,
        "debug": False,
    }
    (tmp_path / "version.py").write_text("((")
    assert frameworks.torch_build(tmp_path) is None
    info = tmp_path / "python/platform/build_info.py"
    info.parent.mkdir(parents=True)
    info.write_text(
        "import collections\nbuild_info = collections.OrderedDict([('cpu_compiler', '/usr/bin/clang'), "
        "('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', True), ('is_rocm_build', False)])\n"
    )
    assert frameworks.tensorflow_build(tmp_path) == {"cuda": "12.5.1", "cudnn": "9", "hip": None}
    info.write_text("build_info = collections.OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])\n")
    assert frameworks.tensorflow_build(tmp_path) == {"cuda": None, "cudnn": None, "hip": None}


def test_the_libraries_that_are_loaded_are_asked_in_a_child() -> None:
    found = loaded.libraries()
    assert found is not None
    assert {"numpy", "torch"} <= set(found["imported"])
    assert found["torch"]["threads"] >= 1
    assert all(each["runtime"].startswith("lib") and "/" not in each["of"] for each in found["openmp"])
    assert found["openmp"] and found["blas"]


def test_tensorflow_is_asked_in_a_child_of_its_own() -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow (an optional extra)")
    found = loaded_tensorflow.tensorflow({**os.environ, "TF_NUM_INTRAOP_THREADS": "3", "TF_ENABLE_ONEDNN_OPTS": "0"})
    assert found is not None and found["version"] == importlib.metadata.version("tensorflow")
    assert found["threads"] == 3 and found["onednn"] is False
    assert isinstance(found["gpus_seen"], int) and "cuda" in found
    assert found["gpus_seen"] or "no_gpu_because" not in found or len(found["no_gpu_because"]) > 10


def test_the_child_imports_nothing_from_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("open('touched', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loaded, "_START", loaded._START.replace("main()", "print(sys.path)"))
    answer = loaded.ask([sys.executable, "-c", loaded._START, "/somewhere"])
    assert answer is not None and "''" not in answer and str(tmp_path) not in answer


def test_a_child_that_fails_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert loaded.libraries() is None


def test_only_telling_variables_are_looked_at() -> None:
    assert telling({"CUDA_LAUNCH_BLOCKING": "1", "AWS_SECRET": "x", "PATH": "y"}) == {"CUDA_LAUNCH_BLOCKING": "1"}
