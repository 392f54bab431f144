"""`make gpu`: what it makes of its tests' output."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SPEC = importlib.util.spec_from_file_location("gpu_command", Path(__file__).parents[1] / "benchmarks" / "gpu.py")
assert SPEC is not None and SPEC.loader is not None
gpu: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu)

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
