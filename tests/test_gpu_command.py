"""`make gpu`: its smoke, and what it makes of its tests' output."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.core.facts import Facts

ROOT = Path(__file__).parents[1]


sys.path.append(str(ROOT / "benchmarks"))  # where `make gpu` finds what it is made of


def _benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_command", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu, smoke, ready = _benchmark("gpu"), _benchmark("gpu_smoke"), _benchmark("gpu_ready")
rows = _benchmark("gpu_rows")

ALONE = """
tests/gpu/test_data.py::test_one[a b] PASSED                             [ 10%]
tests/gpu/test_data.py::test_two FAILED                                  [ 20%]
FAILED tests/gpu/test_data.py::test_two - assert 1 == 2
"""
BESIDE = """
[gw0] [ 10%] PASSED tests/gpu/test_data.py::test_one[a b]
[gw1] [ 20%] FAILED tests/gpu/test_data.py::test_two
FAILED tests/gpu/test_data.py::test_two - assert 1 == 2
"""


@pytest.mark.parametrize("text", [ALONE, BESIDE], ids=["one after the other", "side by side"])
def test_outcomes_are_read_from_what_pytest_prints(text: str) -> None:
    names = ["tests/gpu/test_data.py::test_one[a b]", "tests/gpu/test_data.py::test_two"]
    assert gpu.outcomes_in(text) == list(zip(names, ("PASSED", "FAILED"), strict=True))


def test_why_tests_failed_is_read_though_the_run_was_cut_short() -> None:
    text = (
        BESIDE
        + """
!! tests/gpu/test_data.py::test_two
tests/gpu/test_data.py:7: in test_two
    assert one == two
E   assert 1 == 2
E    +  where 1 = one
!! end
[gw0] [ 30%] PASSED tests/gpu/test_data.py::test_three
"""
    )
    assert gpu.reasons_in(text) == {"tests/gpu/test_data.py::test_two": "assert 1 == 2\n+  where 1 = one"}


@pytest.mark.parametrize(
    ("tests", "well"),
    [
        ({"passed": 3, "failed": 0, "error": 0, "complete": True}, True),
        ({"passed": 3, "failed": 1, "error": 0, "complete": True}, False),
        ({"passed": 3, "failed": 0, "error": 1, "complete": True}, False),
        ({"passed": 3, "failed": 0, "error": 0, "complete": False}, False),
        ({"not_run": "pytest is not installed here"}, False),
    ],
)
def test_only_tests_that_all_came_to_their_end_are_well(tests: dict[str, Any], well: bool) -> None:
    assert gpu.all_well(tests) == well


SMOKE = {
    "plain": {"same": True, "left_out": {}},
    "fp8": {"same": True, "left_out": {"fp8": "no fp8 here"}},
    "offload": {"failed": "exit code -11: signal 11"},
    "compile": {"same": False, "left_out": {}},
    "micro_batch": {"not_run": "no time was left"},
}


def test_a_smoke_tells_what_acts_what_is_left_out_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    lines = smoke.table(SMOKE)
    assert [line.split("|")[2].strip() for line in lines[2:]] == [
        *("acts", "left out", "exit code -11: signal 11", "acts", "no time was left")
    ]
    options = argparse.Namespace(no_smoke=False, no_tests=True)
    assert gpu.said_well({"smoke": SMOKE}, options) == 1
    told = capsys.readouterr().out
    assert "offload: exit code" in told and "compile: other losses" in told and "fp8" not in told
    good = {name: SMOKE[name] for name in ("plain", "fp8", "micro_batch")}
    assert gpu.said_well({"smoke": good}, options) == 0


def test_each_case_is_kept_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut short still tells."""
    kept: list[str] = []
    ends = {"one": {"same": True, "left_out": {}}, "two": {"failed": "x"}}
    monkeypatch.setattr(smoke, "_in_a_process", lambda case, *_: ends[case.techniques[0][0]])
    cases = [smoke.Case(((name, {}),)) for name in ends]
    found = smoke.run(cases, "cuda", False, 60.0, lambda name, result: kept.append(name))
    assert sorted(kept) == ["one", "two"] and found == ends
    assert smoke.run(cases, "cuda", False, 0.0, lambda *_: None)["one"] == {"not_run": "no time was left"}


def test_all_that_may_act_on_a_gpu_is_in_the_smoke() -> None:
    named = {name for case in smoke.cases() for name, _ in case.techniques}
    wanted = {"device", "prefetch", "device_resident", "autocast", "fp8", "tf32", "compile", "cuda_graphs"}
    wanted |= {"fused_optimizer", "deferred_scalars", "allocator", "offload", "unified_memory", "library_autotune"}
    assert wanted <= named and len({case.name for case in smoke.cases()}) == len(smoke.cases())


def test_a_case_that_crashes_or_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "case.py"
    monkeypatch.setattr(smoke, "__file__", str(script))
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "exit code -11" in smoke._in_a_process(smoke.Case(()), "cuda", False, 20.0)["failed"]
    script.write_text("import time; time.sleep(30)")
    assert smoke._in_a_process(smoke.Case(()), "cuda", False, 0.5)["failed"].startswith("no end after")
    script.write_text("print('words'); print('{\"same\": true}')")
    assert smoke._in_a_process(smoke.Case(()), "cuda", False, 20.0) == {"same": True}


def test_each_of_the_smoke_is_for_programs_that_train() -> None:
    """No process of the two minutes is spent on what is left out for certain."""
    named = {name for case in smoke.cases() for name, _ in case.techniques}
    assert "no_grad" not in named
    assert {case.model for case in smoke.cases() for name, _ in case.techniques if name == "micro_batch"} == {"mlp"}


@pytest.mark.parametrize(
    ("there", "torchs", "told"),
    [
        (False, None, "There is no GPU here"),
        (True, None, "was built without CUDA"),
        (True, "13.0", "There is no GPU here"),
        (True, "no torch", "has no PyTorch"),
    ],
)
def test_why_there_is_no_gpu_is_told(
    there: bool, torchs: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a GPU and a PyTorch for the CPU must not read that there is no GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", torchs)
    monkeypatch.setattr(ready.os.path, "exists", lambda path: there)
    monkeypatch.setattr(ready, "find_spec", lambda name: None if torchs == "no torch" else object())
    assert told in ready.no_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ready, "find_spec", lambda name: object())
    assert ready.no_gpu() is None


def test_a_gpu_for_one_process_at_a_time_is_known() -> None:
    alone = {"gpus": [{"compute_mode": "Default"}, {"compute_mode": "Exclusive_Process"}]}
    assert ready.one_process_only(alone)
    assert not ready.one_process_only({"gpus": [{"compute_mode": "Default"}]}) and not ready.one_process_only({})


def test_on_a_gpu_for_one_process_the_smoke_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case after case, without tests and rows, which start processes beside each other."""
    seen: list[argparse.Namespace] = []
    for name, value in (("no_gpu", None), ("use_carried_wheels", None), ("one_process_only", True)):
        monkeypatch.setattr(gpu, name, lambda *_, value=value: value)
    monkeypatch.setattr(gpu, "measured", lambda options, *_: seen.append(options) or 0)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 0
    assert seen[0].no_tests and seen[0].rows == "none" and seen[0].at_once == 1 and not seen[0].no_smoke
    monkeypatch.setattr(gpu, "one_process_only", lambda: False)
    assert gpu.main() == 0 and not seen[1].no_tests and seen[1].at_once is None


def test_cases_can_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[int] = []
    under_way: list[str] = []

    def ran(case: Any, *_: Any) -> dict[str, Any]:
        under_way.append(case.name)
        time.sleep(0.01)
        beside.append(len(under_way))
        under_way.remove(case.name)
        return {"same": True}

    monkeypatch.setattr(smoke, "_in_a_process", ran)
    cases = [smoke.Case(((name, {}),)) for name in "abcd"]
    assert len(smoke.run(cases, "cuda", False, 60.0, lambda *_: None, 1)) == 4 and beside == [1] * 4


def test_the_examples_images_are_made_once_or_it_is_told_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = "import os, pathlib\ndef prepare_data(data):\n    pathlib.Path(os.environ['XDG_CACHE_HOME']).mkdir()\n"
    (tmp_path / "cifar_cnn.py").write_text(program)
    assert ready.render_images(tmp_path) is None and (tmp_path / "cache").is_dir()
    (tmp_path / "cifar_cnn.py").write_text("import no_such_module\n")
    assert "no_such_module" in ready.render_images(tmp_path)
    assert "prepare_data" in (ROOT / "examples" / "cifar_cnn.py").read_text()


def test_what_is_measured_without_a_tune_has_compile_as_well() -> None:
    """`cuda_graphs` stands first, and the two do not go together."""
    given = {level: [name for name, _ in plan] for level, plan in rows.given(Facts(device="cuda"), False).items()}
    assert "cuda_graphs" in given["statistical"] and "compile" not in given["statistical"]
    assert "compile" in given["statistical, compiled"] and "cuda_graphs" not in given["statistical, compiled"]


def test_the_use_that_is_told_is_that_of_the_gpu_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its UUID: the driver numbers all GPUs of the machine, PyTorch those of CUDA_VISIBLE_DEVICES."""
    known = {b"GPU-aa": 1, b"GPU-bb": 2}
    used = {1: 10, 2: 40}  # percent

    def by_uuid(uuid: bytes, handle: Any) -> int:
        handle._obj.value = known.get(uuid, 0)
        return int(uuid not in known)

    def rates(handle: Any, into: Any) -> int:
        into._obj.gpu = used[handle.value]
        return 0

    library = SimpleNamespace(
        nvmlInit_v2=lambda: 0, nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetUtilizationRates=rates
    )
    monkeypatch.setattr(rows.ctypes, "CDLL", lambda name: library)
    computes = SimpleNamespace(uuid="bb", name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: computes)
    ask = rows._utilization()
    assert ask is not None and ask() == 0.4
    computes.name += " MIG 1g.10gb"  # of a part the driver tells no use
    assert rows._utilization() is None


ON_THE_STAND_IN = [
    '[[["cuda_graphs",{}],["deferred_scalars",{}]],"cuda"]',
    '[[["offload",{"least_mib":0}]],"cuda"]',
    '[[["micro_batch",{"parts":2}]],"cuda","mlp"]',
    '[[["library_autotune",{"benchmark":true}]],"cuda"]',
]


@pytest.mark.parametrize("case", ON_THE_STAND_IN)
def test_a_case_runs_on_the_stand_in(case: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_smoke.py"), case, "--stand-in"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["same"] and not result["left_out"]
