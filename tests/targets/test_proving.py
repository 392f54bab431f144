"""An artefact's answers, by its runner in a fresh process, against the program's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.targets.order import Order, calls_in, made_in, write_order
from overdrive.targets.proving import prove
from overdrive.targets.result import AnswersProof

RUNNER = """
import sys
import numpy as np
weights = np.load(sys.argv[0].replace("run.py", "weights.npy"))
for source, place in zip(sys.argv[1::2], sys.argv[2::2]):
    rows = np.load(source)["rows"]
    np.savez(place, scores=WHAT)
"""
SIGNATURE: dict[str, Any] = {"inputs": [{"name": "rows"}], "outputs": [{"name": "scores"}]}


def recorded(folder: Path, what: str, calls: int = 6) -> Path:
    write_order(folder, Order("fake"))
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(16, 4)).astype(np.float32)
    for number in range(calls):
        rows = rng.normal(size=(8, 16)).astype(np.float32)
        exact = rows.astype(np.float64) @ weights.astype(np.float64)
        arrays = {"input 0": rows, "own 0": rows @ weights, "exact 0": exact}
        np.savez(calls_in(folder) / f"{number:03d} recorded.npz", **arrays)  # type: ignore[arg-type]
    np.save(made_in(folder) / "weights.npy", weights)
    (made_in(folder) / "run.py").write_text(RUNNER.replace("WHAT", what))
    return folder


def test_answers_in_another_order_of_summation_are_proved(tmp_path: Path) -> None:
    proof = prove(recorded(tmp_path, "np.ascontiguousarray((weights[::-1].T @ rows[:, ::-1].T).T)"), SIGNATURE, {})
    assert isinstance(proof, AnswersProof) and proof.inputs == {"recorded": 6} and proof.record.calls


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("rows @ (weights * np.float32(1.001))", "bits further from fp64"),  # weights of an earlier epoch
        ("rows[:, ::-1] @ weights", "bits further from fp64"),  # channels in another order
        ("rows.astype(np.float16) @ weights.astype(np.float16)", "bits further from fp64"),
        ("(rows @ weights)[:7]", "missing or not finite"),
        ("rows @ weights * np.float32('nan')", "missing or not finite"),
        ("rows @ weights if not source.count('003') else (rows + 1) @ weights", "in call 4"),  # one call of six
    ],
)
def test_other_answers_are_not(what: str, reason: str, tmp_path: Path) -> None:
    found = prove(recorded(tmp_path, what), SIGNATURE, {})
    assert isinstance(found, str) and reason in found


def test_a_runner_that_fails_says_why(tmp_path: Path) -> None:
    assert (
        prove(recorded(tmp_path, "1 / 0"), SIGNATURE, {}) == "its runner failed (ZeroDivisionError: division by zero)"
    )


def test_two_calls_are_no_proof(tmp_path: Path) -> None:
    found = prove(recorded(tmp_path, "rows @ weights", calls=2), SIGNATURE, {})
    assert isinstance(found, str) and "only 2 different calls" in found
