"""The inventory tells what this process may use, and survives a machine that tells nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from overdrive.machine import cgroup, gpu, inventory, software
from overdrive.machine.cpu import busy_share, cpu, instructions
from overdrive.machine.gpu import gpus, memory_in_use
from overdrive.machine.memory import total_memory
from tests.machine.recorded_nvml import package

GIB = 2**30


@pytest.fixture(autouse=True)
def fresh_gpus() -> Iterator[None]:
    gpus.cache_clear()
    yield
    gpus.cache_clear()


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def driver(init: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """This machine with the NVML of another."""
    monkeypatch.setattr(gpu, "_DEVICES", (str(folder),))
    monkeypatch.setenv("PYTHONPATH", package(folder, init, "workstation_x4"))


def test_memory_that_is_taken_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver("pass", monkeypatch, tmp_path)
    assert memory_in_use() == 1210 * 2**20


def test_this_machine_has_a_core_and_memory_and_says_nothing_about_who_it_is() -> None:
    found = inventory.machine()
    assert 1 <= inventory.granted_cores() <= (os.cpu_count() or 1)
    assert 0 < found["available_bytes"] <= found["memory_bytes"]
    assert found["cpu"]["granted_cores"] == inventory.granted_cores()
    text = json.dumps(found)
    assert platform.node() not in text or len(platform.node()) < 4
    assert "null" not in text  # a plan, being TOML, has no such value


def test_nothing_that_takes_time_is_imported() -> None:
    code = (
        "import sys; from overdrive.machine import inventory as i; i.fingerprint();"
        "print([name for name in ('torch', 'numpy', 'tensorflow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert shown.stdout == "[]\n"


def test_affinity_limits_the_cores() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert inventory.granted_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "junk"}, None),
        ({"proc/self/cgroup": "\n:\n::\n7:cpu\n0::/../../x\n", "sys/fs/cgroup/cpu.max": ""}, None),
        ({}, None),
    ],
    ids=[
        "v2",
        "v2 without a limit",
        "v2 above",
        "v1 in a container",
        "v1 without",
        "junk",
        "odd lines",
        "none",
    ],
)
def test_a_containers_share_of_the_cores_is_found(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    root = tree(tmp_path, files)
    assert cgroup.cores(root) == cores
    assert inventory.granted_cores(root) >= 1
    if cores is not None and cores < 2:
        assert inventory.granted_cores(root) == 1


def test_a_containers_memory_counts_what_is_used_but_not_what_files_may_give_back(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.max": f"{GIB // 4}\n",
            "sys/fs/cgroup/job/memory.current": f"{GIB // 8}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GIB // 32}\nactive_file {GIB // 32}\n",
        },
    )
    assert total_memory(root) == GIB // 4
    assert inventory.available_memory(root) == GIB // 4 - (GIB // 8 - GIB // 16)


def test_a_containers_memory_is_found_in_version_one(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB // 4}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 8}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 8}\n",
    }
    assert inventory.available_memory(tree(tmp_path, files)) == GIB // 4
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n"
    assert cgroup.memory(tree(tmp_path, files)) is None


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1000\n",
        "sys/fs/cgroup/memory.current": "2000\n",
    }
    assert inventory.available_memory(tree(tmp_path, files)) == 0


def test_without_proc_and_sys_there_is_still_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "missing"))
    root = tmp_path / "missing"
    assert inventory.granted_cores(root) >= 1
    assert inventory.available_memory(root) > 0
    assert inventory.machine(root)["memory_bytes"] > 0
    assert len(inventory.fingerprint(root)) == 64


def test_the_processor_is_read_on_x86_and_arm(tmp_path: Path) -> None:
    x86 = tree(
        tmp_path / "x86",
        {"proc/cpuinfo": "model name\t: Big: One\nflags : fpu avx2 amx_bf16\n\nmodel name: b\n"},
    )
    arm = tree(tmp_path / "arm", {"proc/cpuinfo": "processor : 0\nFeatures : asimd bf16\nModel : A Board\n"})
    assert (cpu(x86)["model"], cpu(x86)["features"]) == ("Big: One", ["avx2", "amx_bf16"])
    assert (cpu(arm)["model"], cpu(arm)["features"]) == ("A Board", ["asimd", "bf16"])
    assert instructions(x86) == ["amx_bf16", "avx2"] and instructions(arm) == ["asimd", "bf16"]
    server = tree(tmp_path / "server", {"proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"})
    assert cpu(server)["model"] == "Arm 0x41/0xd0c"


@pytest.mark.parametrize(("allowed", "share"), [({2, 3}, 0.0), ({0, 3}, 0.45), ({0, 9}, 0.25)])
def test_who_works_on_other_cores_takes_none_of_ours(
    allowed: set[int], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval, percpu: [90.0, 10.0, 0.0, 0.0])
    monkeypatch.setattr("os.sched_getaffinity", lambda process: allowed)
    assert busy_share() == pytest.approx(share)


def test_gpus_are_told_by_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver("pass", monkeypatch, tmp_path)
    assert inventory.machine()["gpus"] == [
        {
            "name": "NVIDIA GeForce RTX 4090",
            "memory_bytes": 24564 * 2**20,
            "driver": "570.133.07",
            "compute_capability": "8.9",
            "power_limit_watts": 450,
            "most_sm_mhz": 3120,
        },
    ]


def test_nothing_is_asked_where_the_driver_has_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver("pass", monkeypatch, tmp_path)
    monkeypatch.setattr(gpu, "_DEVICES", (str(tmp_path / "missing"),))
    assert gpus() == () and memory_in_use() == 0


def test_versions_are_read_without_a_fault_in_one_package_hiding_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = inventory.versions()
    assert found["python"] == platform.python_version()
    assert {"overdrive", "numpy"} <= set(found)
    known = software.importlib.metadata.version

    def damaged(name: str) -> str:
        if name == "numpy":
            raise KeyError("Version")
        return known(name)

    monkeypatch.setattr("importlib.metadata.version", damaged)
    assert {**inventory.versions(), "numpy": found["numpy"]} == found


def test_a_card_of_the_same_kind_under_another_number_is_the_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next job of a batch system gets it."""
    card = {"name": "NVIDIA H100", "memory_bytes": 80 << 30}
    found = []
    for visible, cards in (("2", (card,)), ("5", (card,)), ("2,5", (card, card)), ("2", ({**card, "name": "A100"},))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(inventory, "gpus", lambda cards=cards: cards)
        found.append(inventory.fingerprint())
    assert found[0] == found[1] and len(set(found)) == 3


def test_the_fingerprint_stays_with_the_machine_and_changes_with_what_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = inventory.fingerprint()
    assert inventory.fingerprint() == before
    monkeypatch.setattr(platform, "release", lambda: "another kernel")
    monkeypatch.setattr(inventory, "available_memory", lambda root: 12345)
    assert inventory.fingerprint() == before
    monkeypatch.setattr(inventory, "versions", lambda: {"torch": "9.9"})
    changed = inventory.fingerprint()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    elsewhere = inventory.fingerprint()
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert len({before, changed, elsewhere, inventory.fingerprint()}) == 4
