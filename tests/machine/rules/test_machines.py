"""What is wrong on machines that we do not have: as they are in the fixtures, and with one thing changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.json_data import to_json
from overdrive.machine.rules import links, network, processors
from overdrive.machine.rules.apply import RULES, apply_rules
from overdrive.machine.rules.finding import Finding, LeftOut, Severity, listed
from overdrive.machine.survey import survey
from tests.machine.pools import port
from tests.machine.recorded import MACHINES, look, unpack
from tests.machine.recorded_nvml import Change


def found(name: str, root: Path, **how: Any) -> dict[str, list[Finding]]:
    """By severity."""
    findings, failed = apply_rules(look(name, root, **how))
    assert failed == []
    return {level.value: [each for each in findings if each.severity is level] for level in Severity}


def rules(findings: list[Finding]) -> list[str]:
    return [each.rule for each in findings]


def test_a_sound_machine_has_nothing_wrong(tmp_path: Path) -> None:
    levels = found("h100x8", tmp_path)
    assert (rules(levels["wrong"]), rules(levels["advice"])) == ([], [])
    assert rules(levels["note"]) == ["memory_nodes"]


def test_four_lanes_of_sixteen(tmp_path: Path) -> None:
    levels = found("workstation_x4", tmp_path)
    assert rules(levels["wrong"]) == ["pcie_lanes"]
    finding = levels["wrong"][0]
    assert "4 of its 16" in finding.what and "7.9 instead of 31.5 GB/s" in finding.cost
    assert "slot has only 4 lanes" in finding.fix
    assert rules(levels["advice"]) == ["open_files", "spinning_disk"]  # a GPU at rest in generation 1 is no fault


def test_a_small_slice(tmp_path: Path) -> None:
    levels = found("mig_slice", tmp_path)
    assert rules(levels["wrong"]) == ["shared_memory"]
    assert {"mig_slice", "granted_less", "memory_limit", "container_layer"} <= set(rules(levels["note"]))
    assert "slice of 10 GiB" in next(each.what for each in levels["note"] if each.rule == "mig_slice")
    granted = next(each for each in levels["note"] if each.rule == "granted_less")
    assert "by a quota of 8 cores" in granted.what and "write 8 where the program counts cores" in granted.fix
    assert "sched_getaffinity" not in granted.fix, "which tells of all 256"


def test_a_node_without_a_gpu(tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "16", "OMP_NUM_THREADS": "1"}
    levels = found("cpu_two_sockets", tmp_path, environment=environment)
    assert rules(levels["wrong"]) == ["slurm_cores", "governor", "few_threads"]
    advice = {"clock_capped", "transparent_hugepages", "reserved_hugepages", "shared_files"}
    assert set(rules(levels["advice"])) == advice
    assert levels["wrong"][0].command == "srun --cpus-per-task=16 ..."


def test_memory_nodes_are_those_that_the_process_may_use(tmp_path: Path) -> None:
    found = look("h100x8", tmp_path)
    told = [each.command for each in processors.memory_nodes(found) if each.rule == "memory_nodes"]
    assert told == ["numactl --cpunodebind=0 --membind=0 python ..."]
    found["cpu"]["allowed_list"] = "60-70"
    assert not list(processors.memory_nodes(found)), "it is bound to the second"
    found["cpu"]["memory_nodes"] += [{"node": 2, "cores": "224-279"}]
    found["cpu"]["allowed_list"] = "60-70,230"
    assert "--cpunodebind=1" in next(processors.memory_nodes(found)).command


def test_a_cache_on_a_file_server_is_moved_by_its_own_variable(tmp_path: Path) -> None:
    root = unpack("cpu_two_sockets", tmp_path)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    with (root / "proc/self/mountinfo").open("a") as mounts:
        mounts.write("90 1 0:90 / /home rw - nfs4 server:/home rw\n91 1 0:91 / /scratch rw - ext4 /dev/sda1 rw\n")
    for cache, commands in (("", ["export OVERDRIVE_CACHE=/local/$USER/cache"]), ("/scratch/cache", [])):
        environment = {"HOME": "/home/me", "OVERDRIVE_CACHE": cache}
        told = survey(root, environment, load=False, ask_nvml=dict)
        found = [each for each in apply_rules(told)[0] if each.rule == "shared_cache"]
        assert [each.command for each in found] == commands
        assert all(each.what == "Overdrive's cache: on a network file system (nfs4)." for each in found)


@pytest.mark.parametrize(
    ("driver", "held"),
    [("intel_pstate", False), ("amd-pstate-epp", False), ("amd-pstate", True), ("intel_cpufreq", True), ("", True)],
)
def test_powersave_is_the_lowest_clock_where_the_driver_does_not_follow_the_load(driver: str, held: bool) -> None:
    found = list(processors.governor({"cpu": {"governor": "powersave", "clock_driver": driver}}))
    assert rules(found) == (["governor"] if held else [])


def test_broken_ports(tmp_path: Path) -> None:
    levels = found("broken_port", tmp_path)
    assert rules(levels["wrong"]) == ["port_down", "port_down", "port_slow", "port_errors", "locked_memory"]
    cable, manager, slow, errors, _ = levels["wrong"]
    assert "mlx5_1" in cable.what and "cable" in cable.fix
    assert "mlx5_3" in manager.what and "subnet manager" in manager.fix
    assert "mlx5_2" in slow.what and "25%" in slow.cost
    assert "48,213" in errors.what
    assert {"gpudirect", "far_cores"} <= set(rules(levels["advice"]))
    assert ["2 GPUs of 2 have no" in each.what for each in levels["note"] if each.rule == "far_network_card"] == [True]


def says(function: str, answer: Any, gpus: int = 1, at: str = "") -> Change:
    """Changes what NVML answers on the first GPUs; the function must be among those that are asked."""

    def change(told: dict[str, Any]) -> None:
        known = told["device"][function]
        for device in told["devices"][:gpus]:
            device[function] = {**known, at: answer} if at else answer

    return change


def test_gpus_that_are_hidden_are_not_shared_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, taken in (("0", True), ("3", False), ("", False)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        busy = says("nvmlDeviceGetUtilizationRates", 97, at="gpu")
        levels = found("h100x8", tmp_path / f"sees {visible}", change=busy)
        assert ("gpu_taken" in rules(levels["advice"])) is taken


def lost_links(told: dict[str, Any]) -> None:
    states = told["device"]["nvmlDeviceGetNvLinkState"]
    told["devices"][3]["nvmlDeviceGetNvLinkState"] = {**states, "5": 0, "6": 0}


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (lost_links, "nvlink_down", "GPU 3 has 16 NVLinks, its neighbours 18"),
        (says("nvmlDeviceGetPowerManagementLimit", 400_000, 8), "power_cap", "All 8 GPUs may draw 400 W"),
        (says("nvmlDeviceGetGpuFabricInfoV", {"state": 2}, 2), "fabric", "GPUs 0, 1: NVSwitch"),
        (says("nvmlDeviceGetCurrentClocksEventReasons", 0x41), "slowed", "GPU 0 lowers its clocks now: heat, at 34 °C"),
        (says("nvmlDeviceGetRemappedRows", [0, 0, 1, 0]), "gpu_fault", "at the next reset"),
        (says("nvmlDeviceGetRemappedRows", [0, 0, 0, 1]), "gpu_fault", "cannot be replaced"),
        (says("nvmlDeviceGetTotalEccErrors", 2, at="1 0"), "gpu_fault", "2 memory errors"),
        (says("nvmlDeviceGetFieldValues", 1, at="230"), "gpu_fault", "the driver asks for reset"),
        (says("nvmlDeviceGetMigMode", [1, 1]), "mig_empty", "GPU 0 is to be cut"),
        (says("nvmlDeviceGetComputeMode", 2, 8), "compute_prohibited", "All 8 GPUs"),
        (says("nvmlDeviceGetCurrPcieLinkWidth", 8), "pcie_lanes", "GPU 0 is joined by 8 of its 16"),
    ],
)
def test_one_fault_on_a_sound_machine(change: Change, rule: str, words: str, tmp_path: Path) -> None:
    levels = found("h100x8", tmp_path, change=change)
    assert rules(levels["wrong"]) == [rule]
    assert words in levels["wrong"][0].what


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (says("nvmlDeviceGetPersistenceMode", 0, 8), "persistence"),
        (says("nvmlDeviceGetComputeMode", 3, 8), "compute_exclusive"),
        (says("nvmlDeviceGetMaxPcieLinkGeneration", 3, 8), "pcie_generation"),
        (says("nvmlDeviceGetPcieReplayCounter", 4000), "pcie_replays"),
        (says("nvmlDeviceGetUtilizationRates", 97, at="gpu"), "gpu_taken"),
    ],
)
def test_what_could_be_better(change: Change, rule: str, tmp_path: Path) -> None:
    levels = found("h100x8", tmp_path, change=change)
    assert (rules(levels["wrong"]), rules(levels["advice"])) == ([], [rule])


def test_a_port_that_was_never_plugged_in_is_no_fault(tmp_path: Path) -> None:
    survey = look("broken_port", tmp_path)
    del survey["network"]["ports"][1]["errors"]["link_downed"]
    told = [each for each in apply_rules(survey)[0] if each.rule == "port_down" and "mlx5_1" in each.what]
    assert [each.severity for each in told] == [Severity.ADVICE]


def test_many_errors_without_a_lost_link_are_to_be_watched(tmp_path: Path) -> None:
    survey = look("broken_port", tmp_path)
    survey["network"]["ports"][0]["errors"] = {"symbol_error": 500}
    survey["network"]["ports"][2]["errors"] = {"symbol_error": 3}
    told = [each.severity for each in apply_rules(survey)[0] if each.rule == "port_errors"]
    assert told == [Severity.ADVICE, Severity.NOTE]


@pytest.mark.parametrize(
    "missing",
    [
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetApplicationsClock",
    ],
)
def test_what_a_gpu_does_not_tell_is_no_fault(missing: str, tmp_path: Path) -> None:
    findings, failed = apply_rules(look("mig_slice", tmp_path, change=lambda told: told["device"].pop(missing)))
    assert failed == [] and not {"power_cap", "application_clocks"} & set(rules(findings))


@pytest.mark.fault(22)
def test_clocks_that_were_lowered(tmp_path: Path) -> None:
    levels = found("mig_slice", tmp_path, change=says("nvmlDeviceGetApplicationsClock", 900, at="0"))
    finding = next(each for each in levels["wrong"] if each.rule == "application_clocks")
    assert "GPU 0 is held at 900 MHz; as made, 1275 MHz" in finding.what and "29%" in finding.cost


def test_a_gpu_without_its_driver(tmp_path: Path) -> None:
    root = unpack("h100x8", tmp_path)
    findings, _ = apply_rules(survey(root, {}, load=False, ask_nvml=lambda: {"why": "NVML: Driver Not Loaded"}))
    levels = {"wrong": [each for each in findings if each.severity is Severity.WRONG]}
    assert rules(levels["wrong"]) == ["no_driver"]
    assert "8 NVIDIA GPUs" in levels["wrong"][0].what and "--gpus all" in levels["wrong"][0].command


def test_locked_memory_matters_only_with_rdma(tmp_path: Path) -> None:
    survey = look("broken_port", tmp_path)
    survey["network"]["ports"] = []
    assert "locked_memory" not in rules(apply_rules(survey)[0])


@pytest.mark.parametrize("name", MACHINES)
def test_every_finding_is_whole(name: str, tmp_path: Path) -> None:
    findings, _ = apply_rules(look(name, tmp_path, {"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "9999"}))
    assert findings
    for each in findings:
        told = to_json(each)
        json.dumps(told)
        assert told["what"].endswith((".", ")")) and told["cost"] and told["fix"] and " None" not in told["what"]
        assert "\n" not in told["command"]
        if each.severity is not Severity.NOTE:
            assert each.command or each.rule == "no_kernels"
        if told["basis"] == "as documented":
            assert told["source"] or each.rule == "transparent_hugepages"


def test_a_rule_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    def surprised(survey: Any) -> Any:
        raise KeyError("odd")

    findings, failed = apply_rules(look("workstation_x4", tmp_path), (surprised, *RULES))
    assert failed == [LeftOut("advice surprised", "KeyError: 'odd'")]
    assert "pcie_lanes" in rules(findings)


def test_rows_of_numbers_are_told_briefly() -> None:
    assert listed([0, 1, 2, 3]) == "0 to 3" and listed([5, 0, 1]) == "0, 1, 5" and listed([2]) == "2"


@pytest.mark.parametrize(("rate", "wrong"), [("100 Gb/sec (2X HDR)", False), ("50 Gb/sec (2X EDR)", True)])
def test_ports_of_two_lanes_by_design(rate: str, wrong: bool) -> None:
    told = port(lanes=2, rate=rate, gigabits_per_second=float(rate.split()[0]))
    assert bool(list(network.slow({"network": {"ports": [told]}}))) is wrong


@pytest.mark.parametrize(
    ("active", "rows", "rule"),
    [
        ((4, 4, 0), ("X NV4 SYS", "NV4 X SYS", "SYS SYS X"), "nvlink_uneven"),  # a bridge joins two
        ((4, 4, 4, 0), ("X NV4 NV4 SYS", "NV4 X NV4 SYS", "NV4 NV4 X SYS", "SYS SYS SYS X"), "nvlink_down"),
        ((4, 4, 3), ("X NV4 NV3", "NV4 X NV3", "NV3 NV3 X"), "nvlink_down"),
    ],
)
def test_a_gpu_without_a_bridge_is_no_broken_one(active: tuple[int, ...], rows: tuple[str, ...], rule: str) -> None:
    gpus = [{"index": index, "name": "A6000"} for index in range(len(active))]
    topology = {"nvlinks": [{"active": each} for each in active], "gpus": [row.split() for row in rows]}
    assert [each.rule for each in links.nvlinks({"nvidia": {"gpus": gpus}, "topology": topology})] == [rule]
