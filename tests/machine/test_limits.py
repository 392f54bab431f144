"""The measured limits: what is kept, what is left out and why, and that each is what its name says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overdrive.machine import limits as limits_module
from overdrive.machine.cpu import computing_cores, granted_cores
from overdrive.machine.limits import Limits, LimitsUnavailable, measured_limits

OF_THIS = {"version": limits_module._VERSION, "seconds": 1.0, "when": 0.0}


def told(**besides: float) -> dict[str, Any]:
    values = {"cpu.matmul.fp32": 4e9, "cpu.1.matmul.fp32": 1e9, "cpu.memory.copy": 8e9, "cpu.memory.triad": 9e9}
    values |= {"cpu.1.memory.triad": 3e9, "cpu.cache.triad": 20e9, "cpu.1.cache.triad": 5e9, **besides}
    return {
        "measures": {name: {"value": value, "unit": "B/s", "how": "told"} for name, value in values.items()},
        "missing": {"cpu.matmul.fp8": "emulated"},
        "notes": [],
        "threads": 4,
        "gpu": "H200" if "cuda.matmul.bf16" in values else "",
        "busy_share": 0.0,
    }


def limits_of(data: dict[str, Any]) -> Limits:
    return Limits.from_dict({**data, **OF_THIS, "fingerprint": "f", "quick": False})


def test_the_roofline_is_of_the_device_that_training_would_run_on() -> None:
    line = limits_of(told()).roofline()
    assert (line.device, line.peak_flops, line.memory_bytes_per_second) == ("cpu", {"fp32": 4e9}, 9e9)
    found = limits_of(told(**{"cuda.matmul.bf16": 9e14, "cuda.memory.copy": 4e12}))
    line = found.roofline()
    assert (line.device, line.peak_flops, line.memory_bytes_per_second) == ("cuda", {"bf16": 9e14}, 4e12)
    assert found.roofline("cpu").peak_flops == {"fp32": 4e9}


def test_the_roofline_of_some_threads_lies_between_that_of_one_and_of_all() -> None:
    found = limits_of(told())
    assert found.roofline("cpu", 1).peak_flops["fp32"] == 1e9
    assert found.roofline("cpu", 2).peak_flops["fp32"] == 2e9
    assert found.roofline("cpu", 2).memory_bytes_per_second == 5e9


def test_all_threads_can_do_no_less_than_one() -> None:
    assert limits_of(told(**{"cpu.1.matmul.fp32": 5e9})).roofline().peak_flops["fp32"] == 5e9


def test_they_are_kept_and_measured_again_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def measure(mine: str, quick: bool) -> Limits:
        asked.append(quick)
        data = {**told(), **OF_THIS, "fingerprint": mine, "quick": quick}
        return Limits.from_dict(data)

    monkeypatch.setattr(limits_module, "_measure", measure)
    monkeypatch.setattr(limits_module, "fingerprint", lambda: "this machine")
    assert measured_limits(quick=True, folder=tmp_path).quick
    assert not measured_limits(folder=tmp_path).quick, "coarse ones do not pass for those measured at length"
    assert not measured_limits(quick=True, folder=tmp_path).quick, "but those do for coarse ones"
    assert asked == [True, False]
    measured_limits(fresh=True, folder=tmp_path)
    monkeypatch.setattr(limits_module, "fingerprint", lambda: "another machine")
    measured_limits(folder=tmp_path)
    assert len(asked) == 4
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("9000000000.0", '"nan"'))
    measured_limits(folder=tmp_path)
    assert len(asked) == 5, "a damaged file is measured again"


def test_a_process_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module.sys, "executable", "/bin/false")
    with pytest.raises(LimitsUnavailable, match="could not be measured"):
        limits_module._measure("f", quick=True)


torch = pytest.importorskip("torch")
from overdrive.machine.microbenchmarks import memory, products, storage  # noqa: E402
from overdrive.machine.microbenchmarks.best import Measurements, NotMeasured  # noqa: E402
from overdrive.machine.microbenchmarks.links import measure_all_reduce  # noqa: E402


def half_a_second(act: Any, *_: Any) -> float:
    act()
    return 0.5


def test_a_product_counts_two_operations_for_each_element_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "best_seconds", half_a_second)
    monkeypatch.setitem(products._SIDES, "cpu", (8, 16))
    answer = Measurements(quick=True, seconds=60)
    products.measure_products(answer, "cpu", "cpu.", ("fp32", "tf32"))
    assert answer.measures["cpu.matmul.fp32"]["value"] == 2 * 8**3 / 0.5, "it stops where a product takes too long"
    assert answer.missing == {"cpu.matmul.tf32": "a processor has no tf32"}


def test_a_format_that_is_emulated_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = iter([1e-3, 1e-3, 1.0])  # two sides of fp32, then bf16
    monkeypatch.setattr(products, "best_seconds", lambda *_: next(slow))
    answer = Measurements(quick=True, seconds=60)
    products.measure_products(answer, "cpu", "cpu.", ("bf16", "fp32"))
    assert "emulated" in answer.missing["cpu.matmul.bf16"]


def test_copy_moves_two_arrays_and_triad_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "best_seconds", half_a_second)
    monkeypatch.setattr(memory, "available_memory", lambda: 8 * 4 * memory._MIB)
    answer = Measurements(quick=True, seconds=60)
    memory.measure_memory(answer, "cpu", "cpu.")
    assert answer.measures["cpu.memory.copy"]["value"] == 2 * 4 * memory._MIB / 0.5
    assert answer.measures["cpu.memory.triad"]["value"] == 3 * 4 * memory._MIB / 0.5


def test_caches_are_counted_once_for_those_who_share_them(tmp_path: Path) -> None:
    for core, level, size, shared in (
        (0, 3, "32M", "0-1"),
        (1, 3, "32M", "0-1"),
        (2, 3, "32M", "2"),
        (0, 2, "1M", "0"),
    ):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/cache/index{level}"
        folder.mkdir(parents=True)
        for name, text in (("size", size), ("level", str(level)), ("shared_cpu_list", shared)):
            (folder / name).write_text(text)
    assert memory.last_level_cache(tmp_path) == 64 * memory._MIB


def test_storage_leaves_nothing_behind_and_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "best_seconds", half_a_second)
    answer = Measurements(quick=True, seconds=60)
    storage.measure_storage(answer, tmp_path)
    assert not list(tmp_path.iterdir())
    assert answer.measures["files.small_read_cached"]["value"] == 200 / 0.5
    assert {"storage.write", "storage.read", "files.small_read"} <= answer.measures.keys()
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1})())
    with pytest.raises(NotMeasured, match="free"):
        storage.measure_storage(answer, tmp_path)


def test_two_ranks_reduce_and_their_errors_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Measurements(quick=True, seconds=60)
    measure_all_reduce(answer, "gloo")
    assert answer.measures["all_reduce.gloo"]["value"] > answer.measures["all_reduce.gloo.latency"]["value"] > 0
    answer.attempt("all_reduce.nccl", lambda: measure_all_reduce(answer, "nccl"))
    if torch.cuda.device_count() < 2:
        assert "two GPUs" in answer.missing["all_reduce.nccl"]


def test_what_is_kept_is_plain_json() -> None:
    found = limits_of(told())
    assert Limits.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_of_two_hardware_threads_of_a_core_one_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thread for each of 16, the peak of the 8 that PyTorch takes was told as 8 in 16 of it, and half of it was
    "above the roof"; and a step was said to take half as long with 16."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    for core in range(16):
        place = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{core % 8},{core % 8 + 8}\n")
    assert (granted_cores(tmp_path), computing_cores(tmp_path)) == (16, 8)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("400000 100000\n")
    assert computing_cores(tmp_path) == 4, "a container's quota is of time, whatever the cores"
    assert computing_cores(tmp_path / "nothing is told") == 16
    assert limits_of(told()).roofline("cpu", 8).peak_flops["fp32"] == 4e9, "beyond all that compute there is no more"
