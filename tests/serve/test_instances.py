"""Several instances of a model: each answers by itself, at the same time, and as the export that was proved."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.machine.cpu import granted_cores
from overdrive.serve.instances import load_instances, threads_of
from overdrive.serve.model import CannotServe, ServedModel
from overdrive.serve.waiting import WaitingRequests
from tests.serve.folders import RUN, SIGNATURE, exported, request, serving

ROWS = np.ones((1, 4), np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield exported(tmp_path / "folder")
    sys.modules.pop("checks", None)


def of(*answers: Any) -> ServedModel:
    return ServedModel("Net", SIGNATURE, answers[0], lambda inputs: [inputs["x"]], "batch", tuple(answers[1:]))


def test_they_answer_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def answer(inputs: Any) -> Any:
        both.wait(30)  # an instance that waits for the other to end fails here
        return {"output": inputs["x"]}

    waiting = WaitingRequests(of(answer, answer), limit=10)
    for each in [waiting.ask({"x": ROWS}) for _ in range(4)]:
        assert np.array_equal(each.result(60)["output"], ROWS)
    waiting.end()


def test_each_is_asked_for_one_thing_at_a_time_and_no_request_is_left() -> None:
    def instance(number: int) -> Any:
        alone = threading.Lock()

        def answer(inputs: Any) -> Any:
            if not alone.acquire(blocking=False):
                raise RuntimeError("two calls at once")
            try:
                return {"output": inputs["x"] * 2}
            finally:
                alone.release()

        return answer

    waiting = WaitingRequests(of(*map(instance, range(3))), limit=1000, most=4, linger=0.001)
    asked = [(n, waiting.ask({"x": ROWS * n})) for n in range(400)]
    assert all(np.array_equal(each.result(60)["output"], ROWS * 2 * n) for n, each in asked)
    waiting.end()


def test_each_has_its_share_of_the_cores() -> None:
    assert threads_of(1, 0) == 0 and threads_of(1, 3) == 3 and threads_of(2, 3) == 3
    assert threads_of(granted_cores(), 0) == 1 and threads_of(10_000, 0) == 1


@pytest.mark.parametrize(("granted", "threads"), [(2, 2), (8, 0)])
def test_one_has_the_cores_that_are_granted_where_those_are_not_all(
    granted: int, threads: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.machine.cpu.granted_cores", lambda: granted)
    monkeypatch.setattr("overdrive.machine.cpu._count", lambda logical: 8)
    checks = folder / "checks.py"
    lines = checks.read_text().splitlines()
    checks.write_text("\n".join("THREADS = 0" if line.startswith("THREADS") else line for line in lines))
    load_instances(folder, 1, 0)
    found = sys.modules["checks"].THREADS
    assert found == threads


def test_they_answer_as_the_export(folder: Path) -> None:
    made = load_instances(folder, 3, 1)
    answers = [each({"x": ROWS})["output"] for each in (made.answer, *made.others)]
    assert len(answers) == 3 and all(np.array_equal(each, ROWS @ np.arange(12).reshape(4, 3)) for each in answers)
    assert sys.modules["checks"].THREADS == 1


@pytest.mark.parametrize(
    ("factor", "alike"), [("1 + 1e-7 * checks.THREADS", True), ("1 + 1e-3 * checks.THREADS", False)]
)
def test_where_threads_change_more_than_rounding_there_are_none(factor: str, alike: bool, folder: Path) -> None:
    (folder / "run.py").write_text(RUN.replace("SLOW", "0").replace("weights = ", f"weights = np.float32({factor}) * "))
    if alike:
        assert len(load_instances(folder, 2, 1).others) == 1
        return
    with pytest.raises(CannotServe, match="answers otherwise than the export that was proved"):
        load_instances(folder, 2, 1)


def test_what_takes_no_threads_is_refused_by_its_reason(folder: Path) -> None:
    checks = folder / "checks.py"
    checks.write_text("\n".join(line for line in checks.read_text().splitlines() if not line.startswith("THREADS")))
    with pytest.raises(CannotServe, match="export it again"):
        load_instances(folder, 2, 1)
    signature = folder / "signature.json"
    signature.write_text(signature.read_text().replace('"onnx"', '"aoti"'))
    with pytest.raises(CannotServe, match="compiles the number of threads in"):
        load_instances(folder, 2, 1)


def test_a_model_that_fails_on_made_up_inputs_has_no_instances(folder: Path) -> None:
    (folder / "run.py").write_text(RUN.replace("SLOW", "0").replace("-1e5", "1e5"))
    with pytest.raises(CannotServe, match="no such place in the table"):
        load_instances(folder, 2, 1)


def test_a_server_of_two(tmp_path: Path) -> None:
    with serving(exported(tmp_path / "folder"), "--instances", "2") as server:
        assert ", 2 instances" in server.first
        assert server.ask(request((1, 0, 0, 0)))[0] == 200
