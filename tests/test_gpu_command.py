"""`make gpu`: its smoke, and what it makes of its tests' output."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def _benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_command", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu, smoke = _benchmark("gpu"), _benchmark("gpu_smoke")

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


ON_THE_STAND_IN = ['[["cuda_graphs",{}],["deferred_scalars",{}]]', '[["offload",{"least_mib":0}]]']


@pytest.mark.parametrize("techniques", ON_THE_STAND_IN)
def test_a_case_runs_on_the_stand_in(techniques: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_smoke.py"), f'[{techniques},"cuda"]', "--stand-in"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["same"] and not result["left_out"]
