"""Findings about environment variables and installed builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overdrive.machine.rules import environment, measured, software, tensorflow
from overdrive.machine.rules.apply import apply_rules
from overdrive.machine.rules.finding import Finding, Severity
from overdrive.machine.rules.variables import VARIABLES
from overdrive.machine.survey import telling
from tests.machine.recorded import look


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    names = ("h100x8", "workstation_x4", "cpu_two_sockets", "mi300x8")
    return {name: look(name, tmp_path_factory.mktemp(name)) for name in names}


def findings(survey: dict[str, Any], rules: Any, **changes: Any) -> list[Finding]:
    return apply_rules({**survey, **changes}, rules)[0]


def torch(**of: Any) -> dict[str, Any]:
    build = {"version": "2.13.0", "cuda": None, "hip": None, "xpu": None, "debug": False, **of}
    return {"torch": build, "libraries": {}, "mismatched": [], "versions": {}}


HARMFUL = {
    "NCCL_DEBUG": "TRACE",
    "NCCL_NET": "Socket",
    "NCCL_P2P_LEVEL": "LOC",
    "NCCL_NET_GDR_LEVEL": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUDA_MODULE_LOADING": "EAGER",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "XLA_FLAGS": "--xla_dump_to=/tmp/x",
    "PYTHONMALLOC": "debug",
    "LD_PRELOAD": "/usr/lib/libasan.so.8",
    "MALLOC_MMAP_THRESHOLD_": "4096",
    "MALLOC_ARENA_MAX": "1",
}
HARMLESS = {
    "NCCL_DEBUG": "WARN",
    "NCCL_NET": "IB",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_NET_GDR_LEVEL": "SYS",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_MODULE_LOADING": "LAZY",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    "XLA_FLAGS": "--xla_gpu_autotune_level=2",
    "PYTHONMALLOC": "mimalloc",
    "LD_PRELOAD": "libjemalloc.so.2",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_ARENA_MAX": "4",
}
OFF = {variable.name: "0" if variable.hurts("1") else "1" for variable in VARIABLES}
ON = {variable.name: "1" if variable.hurts("1") else "0" for variable in VARIABLES}
SETTING_IS_ENOUGH = {variable.name for variable in VARIABLES if variable.hurts("1") and variable.hurts("0")}


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_each_variable_hurts_as_one_says_and_not_otherwise(variable: Any, machines: dict[str, dict[str, Any]]) -> None:
    name = variable.name
    assert telling({name: "x"}), "the survey must look at it"
    machine = machines["mi300x8" if variable.needs == "amd" else "h100x8"]
    bad = findings(machine, (environment.table,), environment={name: HARMFUL.get(name, ON[name])})
    assert [(each.severity, each.command) for each in bad] == [(variable.severity, f"unset {name}")]
    if name not in SETTING_IS_ENOUGH:
        good = HARMLESS.get(name, OFF[name])
        assert findings(machine, (environment.table,), environment={name: good}) == []
    assert findings(machine, (environment.table,), environment={name: ""}) == []


def test_a_variable_for_what_is_not_there_is_only_noted(machines: dict[str, dict[str, Any]]) -> None:
    here = findings(machines["workstation_x4"], (environment.table,), environment={"NCCL_IB_DISABLE": "1"})
    assert [each.severity for each in here] == [Severity.NOTE]
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "TRACE", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    for machine, severity in (("cpu_two_sockets", Severity.NOTE), ("mi300x8", Severity.WRONG)):
        here = findings(machines[machine], (environment.table,), environment=variables)
        assert [each.severity for each in here] == 3 * [severity], machine


@pytest.mark.parametrize(
    ("machine", "variables", "rule", "severity"),
    [
        ("h100x8", {"OMP_NUM_THREADS": "225"}, "too_many_threads", Severity.WRONG),
        ("h100x8", {"OMP_NUM_THREADS": "224"}, None, None),
        ("h100x8", {"OMP_NUM_THREADS": "1"}, "few_threads", Severity.ADVICE),
        ("cpu_two_sockets", {"OMP_NUM_THREADS": "1"}, "few_threads", Severity.WRONG),
        ("cpu_two_sockets", {"OMP_NUM_THREADS": "4,2"}, None, None),
        ("cpu_two_sockets", {"OMP_NUM_THREADS": "many"}, None, None),
        ("cpu_two_sockets", {"MKL_NUM_THREADS": "9"}, "too_many_threads", Severity.WRONG),
        ("h100x8", {"CUDA_VISIBLE_DEVICES": ""}, "gpus_hidden", Severity.WRONG),
        ("h100x8", {"CUDA_VISIBLE_DEVICES": "0,8"}, "gpus_unknown", Severity.WRONG),
        ("h100x8", {"CUDA_VISIBLE_DEVICES": "0,7"}, None, None),
        ("cpu_two_sockets", {"CUDA_VISIBLE_DEVICES": ""}, None, None),
        ("h100x8", {"OMP_PROC_BIND": "close"}, "bound_threads", Severity.NOTE),
        ("h100x8", {"OMP_PROC_BIND": "false"}, None, None),
        ("h100x8", {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, None, None),  # as cuBLAS has it by itself
    ],
)
def test_variables_that_depend_on_the_machine(
    machine: str, variables: dict[str, str], rule: Any, severity: Any, machines: dict[str, dict[str, Any]]
) -> None:
    told = findings(machines[machine], environment.RULES, environment=variables)
    assert [(each.rule, each.severity) for each in told] == ([(rule, severity)] if rule else [])


def test_only_of_its_own_variable_it_is_said_that_torchrun_sets_it(machines: dict[str, dict[str, Any]]) -> None:
    for name, said in (("OMP_NUM_THREADS", True), ("OPENBLAS_NUM_THREADS", False)):
        (told,) = findings(machines["h100x8"], (environment.threads,), environment={name: "1"})
        assert ("torchrun" in told.cost) is said


@pytest.mark.parametrize(
    ("machine", "installed", "rules"),
    [
        ("h100x8", torch(), ["torch_cpu_build"]),
        ("h100x8", torch(cuda="13.0"), []),
        ("workstation_x4", torch(cuda="13.0"), ["old_driver"]),  # its driver runs 12.8
        ("workstation_x4", torch(cuda="12.9"), []),  # minor versions are compatible
        ("cpu_two_sockets", torch(), []),
        ("cpu_two_sockets", torch(cuda="13.0"), ["torch_gpu_build"]),
        ("cpu_two_sockets", torch(debug=True), ["debug_build"]),
        ("h100x8", {"tensorflow": {"cuda": None, "cudnn": None, "hip": None}}, ["tensorflow_cpu"]),
        ("h100x8", {"tensorflow": {"cuda": "12.5", "cudnn": "9", "hip": None}}, ["tensorflow_cpu"]),
        (
            "h100x8",
            {"tensorflow": {"cuda": "12.5", "cudnn": "9", "hip": None}, "libraries": {"cuDNN": "9.3"}},
            [],
        ),
    ],
)
def test_builds_fit_the_hardware(
    machine: str, installed: dict[str, Any], rules: list[str], machines: dict[str, dict[str, Any]]
) -> None:
    told = findings(machines[machine], (*software.RULES, *tensorflow.RULES), software=installed)
    assert [each.rule for each in told] == rules


def test_a_cpu_build_is_replaced_by_one_that_the_driver_runs(machines: dict[str, dict[str, Any]]) -> None:
    new = findings(machines["h100x8"], software.RULES, software=torch(version="2.13.0+cpu"))[0]
    old = findings(machines["workstation_x4"], software.RULES, software=torch())[0]
    assert "torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130" in new.command
    assert old.command.endswith("/cu126")


@pytest.mark.parametrize(
    ("built", "runs"),
    [
        ("sm_80 sm_90", True),
        ("sm_90a", True),
        ("sm_75 sm_80", False),
        ("sm_100", False),
        ("sm_80 compute_80", True),
        ("compute_100", False),
        ("gfx90a", False),
    ],
)
def test_kernels_for_this_gpu(built: str, runs: bool, machines: dict[str, dict[str, Any]]) -> None:
    loaded = {"torch": {"architectures": built.split()}}
    told = findings(machines["h100x8"], (software.architectures,), loaded=loaded)
    assert len(told) == (0 if runs else 8)


def test_what_the_child_tells(machines: dict[str, dict[str, Any]]) -> None:
    def rules(loaded: dict[str, Any], machine: str = "cpu_two_sockets", **more: Any) -> list[str]:
        return [each.rule for each in findings(machines[machine], software.RULES, loaded=loaded, **more)]

    both = [{"runtime": "libiomp5", "of": "mkl"}, {"runtime": "libomp", "of": "torch"}]
    assert rules({"openmp": both}) == ["openmp_mixed"]
    assert rules({"openmp": [{"runtime": "libgomp", "of": name} for name in ("torch", "sklearn")]}) == ["openmp_twice"]
    assert rules({"openmp": both[:1]}) == []
    assert rules({"failed": {"torch": "OSError: libcudart.so.12"}}) == ["import_fails"]
    assert rules({"imported": ["numpy"], "blas": []}) == ["numpy_without_blas"]
    assert rules({"torch": {"threads": 48}}) == ["more_threads_than_cores"]  # 8 are granted
    assert rules({"torch": {"threads": 8}}) == []
    blind = {"torch": {"gpus_seen": 0, "no_gpu_because": "CUDA initialization: error 802"}}
    assert rules(blind, "h100x8", software=torch(cuda="13.0")) == ["cuda_fails"]


def test_what_tensorflow_tells_of_itself(machines: dict[str, dict[str, Any]]) -> None:
    def rules(told: dict[str, Any], machine: str = "cpu_two_sockets", **more: Any) -> list[str]:
        found = findings(machines[machine], tensorflow.RULES, loaded={"tensorflow": told}, **more)
        return [each.rule for each in found]

    assert rules({"failed": "ImportError: libcudart.so.12"}) == ["import_fails"]
    assert rules({"threads": 48}) == ["tensorflow_threads"]  # 8 are granted
    assert rules({"threads": 8, "onednn": True}) == []
    assert rules({"threads": 2}, environment={"TF_NUM_INTRAOP_THREADS": "2"}) == ["tensorflow_few_threads"]
    assert rules({"onednn": False}) == ["tensorflow_without_onednn"]
    off = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    assert rules({"onednn": False}, environment=off) == []  # the variable has a finding of its own
    built = {"tensorflow": {"cuda": "12.5", "cudnn": "9", "hip": None}}
    blind = {"cuda": "12.5", "gpus_seen": 0, "no_gpu_because": "Cannot dlopen some GPU libraries"}
    (found,) = findings(machines["h100x8"], tensorflow.RULES, loaded={"tensorflow": blind}, software=built)
    assert found.rule == "tensorflow_sees_no_gpu" and "Cannot dlopen some GPU libraries." in found.what
    assert rules({**blind, "gpus_seen": 8}, "h100x8", software=built) == []  # it brought its libraries some other way
    assert rules(blind) == []  # there is none to be seen
    one_thread = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    (found,) = findings(machines["cpu_two_sockets"], (environment.table,), environment=one_thread)
    assert "one thread" in found.cost


def test_slow_copies_are_seen_in_the_limits(machines: dict[str, dict[str, Any]]) -> None:
    def rules(pinned: float, pageable: float) -> list[str]:
        limits = {
            "transfer.to_device.pinned": {"value": pinned, "unit": "B/s", "how": ""},
            "transfer.to_device.pageable": {"value": pageable, "unit": "B/s", "how": ""},
        }
        return [each.rule for each in findings(machines["h100x8"], measured.RULES, limits=limits)]

    assert rules(55.4e9, 50e9) == []  # as was measured on H200s (research)
    assert rules(12e9, 11e9) == ["slow_copies"]
    assert rules(55.4e9, 9e9) == ["pin_memory"]


@pytest.mark.parametrize(
    ("name", "rate", "said"),
    [
        ("h100x8", 20e9, "each GPU sends 35 GB/s; its NVLinks carry 478"),
        ("h100x8", 150e9, ""),
        ("broken_port", 2e9, "each GPU sends 2 GB/s; its PCIe links carry 31.5"),
        ("workstation_x4", 1e6, ""),
    ],
)
def test_an_all_reduce_far_below_its_links(name: str, rate: float, said: str, tmp_path: Path) -> None:
    limits = {"all_reduce.nccl": {"value": rate, "unit": "B/s", "how": ""}}
    found = findings(look(name, tmp_path), (measured.slow_all_reduce,), limits=limits)
    assert [said in each.what and each.severity is Severity.ADVICE for each in found] == ([True] if said else [])


def test_an_all_reduce_is_that_of_the_gpus_that_are_seen(machines: dict[str, dict[str, Any]]) -> None:
    some = {**machines["h100x8"]["nvidia"], "visible": [[0, None], [1, None]]}
    limits = {"all_reduce.nccl": {"value": 20e9, "unit": "B/s", "how": ""}}
    (found,) = findings({**machines["h100x8"], "nvidia": some}, (measured.slow_all_reduce,), limits=limits)
    assert "each GPU sends 20 GB/s" in found.what
