"""What a runner takes: inputs that its signature describes, and no others."""

from __future__ import annotations

import hashlib
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.targets import runners

SIGNATURE = {
    "inputs": [
        {"name": "rows", "shape": ["batch", 3], "dtype": "float32"},
        {"name": "mask", "shape": ["batch"], "dtype": "bool"},
    ],
    "dimensions": {"batch": {"min": 2, "max": 5}},
    "artefact": "model.onnx",
    "files": {"model.onnx": hashlib.sha256(b"a graph").hexdigest()},
}
ROWS, MASK = np.zeros((4, 3), np.float32), np.zeros(4, bool)


@pytest.fixture
def checks(tmp_path: Path) -> Any:
    (tmp_path / "signature.json").write_text(json.dumps(SIGNATURE))
    shutil.copy(Path(runners.__file__).with_name("checks.py"), tmp_path)
    return runpy.run_path(str(tmp_path / "checks.py"))


@pytest.mark.parametrize(
    ("allowed", "files", "threads"),
    [
        (8, {}, 0),
        (8, {"cpu.max": "max 100000\n"}, 0),
        (2, {"cpu.max": "max 100000\n"}, 2),
        (8, {"cpu.max": "350000 100000\n"}, 3),
        (8, {"cpu.max": "50000 100000\n"}, 1),
        (2, {"cpu.max": "350000 100000\n"}, 2),
        (8, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (8, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0),
    ],
)
def test_a_call_has_no_more_threads_than_the_process_has_cores(
    allowed: int, files: dict[str, str], threads: int, checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(allowed)))
    (tmp_path / "groups" / "cpu").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "groups" / name).write_text(text)
    assert checks["fewer_cores"](tmp_path / "groups") == threads


@pytest.fixture
def checked(checks: Any) -> Any:
    return checks["checked"]


def test_the_models_file_is_the_one_that_was_proved(checks: Any, tmp_path: Path) -> None:
    place = tmp_path / "model.onnx"
    place.write_bytes(b"a graph")
    assert checks["artefact"]() == str(place)
    for other in (b"a grap", b"another", b""):
        place.write_bytes(other)
        with pytest.raises(ValueError, match=r"model.onnx is not the file that was proved"):
            checks["artefact"]()


def test_inputs_come_in_the_order_of_the_signature(checked: Any) -> None:
    assert [each.shape for each in checked({"mask": MASK, "rows": ROWS})] == [(4, 3), (4,)]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"rows": ROWS}, "the inputs are rows, mask; given are rows"),
        ({"rows": ROWS.astype(float), "mask": MASK}, "rows is of type float64; float32 is wanted"),
        ({"rows": ROWS[:, :2], "mask": MASK}, r"rows has the shape \[4, 2\]; \[batch, 3\]"),
        ({"rows": ROWS, "mask": MASK[:3]}, r"mask has the shape \[3\]; \[batch\] with {'batch': 4}"),
        (
            {"rows": ROWS[:1], "mask": MASK[:1]},
            r"rows has the shape \[1, 3\]; \[batch, 3\] is wanted, batch from 2 to 5",
        ),
        ({"rows": np.zeros((6, 3), np.float32), "mask": np.zeros(6, bool)}, "is wanted, batch from 2 to 5"),
        ({"rows": ROWS[0], "mask": MASK}, r"rows has the shape \[3\]"),
    ],
)
def test_others_are_refused(inputs: Any, told: str, checked: Any) -> None:
    with pytest.raises(ValueError, match=told):
        checked(inputs)


PROVED = {
    "inputs": [
        {"name": "x", "shape": ["batch"], "dtype": "float32"},
        {"name": "places", "shape": ["batch"], "dtype": "int64"},
    ],
    "dimensions": {"batch": {"min": 1}},
    "values": {"x": {"finite": True}, "places": {"min": 3, "max": 9}},
}


def test_values_that_were_not_proved_are_refused(tmp_path: Path) -> None:
    """A model that raises, or answers NaN, has engines that answer numbers as any."""
    (tmp_path / "signature.json").write_text(json.dumps(PROVED))
    shutil.copy(Path(runners.__file__).with_name("checks.py"), tmp_path)
    checked = runpy.run_path(str(tmp_path / "checks.py"))["checked"]
    x, places = np.full(2, 3e38, np.float32), np.array([3, 9])
    assert len(checked({"x": x, "places": places})) == 2, "their sum has no number, and they have"
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="x holds NaN or infinity, which was not proved"):
            checked({"x": np.float32([0, value]), "places": places})
    for value in (2, 10, -(2**60)):
        with pytest.raises(ValueError, match=f"places holds {value}; proved are whole numbers from 3 to 9"):
            checked({"x": x, "places": np.array([5, value])})


CODES = {
    "inputs": [{"name": "x", "shape": ["batch", 2], "dtype": "float32"}, {"name": "y", "shape": [], "dtype": "int8"}],
    "dimensions": {"batch": {"min": 1, "max": 8}},
    "values": {"x": {"min": -2.5, "max": float(np.float32(0.1))}, "y": {"min": 0, "max": 300}},
}


def test_fractions_that_were_not_proved_are_refused(tmp_path: Path) -> None:
    (tmp_path / "signature.json").write_text(json.dumps(CODES))
    shutil.copy(Path(runners.__file__).with_name("checks.py"), tmp_path)
    checked = runpy.run_path(str(tmp_path / "checks.py"))["checked"]
    y = np.array(5, np.int8)
    assert len(checked({"x": np.float32([[-2.5, 0.1], [np.nan, 0]]), "y": y})) == 2
    for value in (-2.75, 0.25, np.inf):
        with pytest.raises(ValueError, match=f"x holds {value}; proved are numbers from -2.5 to 0.1"):
            checked({"x": np.float32([[0, np.nan], [value, 0]]), "y": y})
    with pytest.raises(ValueError, match="y holds -1; proved are whole numbers from 0 to 300"):
        checked({"x": np.zeros((1, 2), np.float32), "y": np.array(-1, np.int8)})


def test_an_end_that_is_not_known_is_none(tmp_path: Path) -> None:
    one_end = {**CODES, "values": {"x": {"min": -2.5}}}
    (tmp_path / "signature.json").write_text(json.dumps(one_end))
    shutil.copy(Path(runners.__file__).with_name("checks.py"), tmp_path)
    checked = runpy.run_path(str(tmp_path / "checks.py"))["checked"]
    y = np.array(5, np.int8)
    assert len(checked({"x": np.float32([[np.inf, 1e30]]), "y": y})) == 2
    with pytest.raises(ValueError, match=r"x holds -3.0; proved are numbers from -2.5$"):
        checked({"x": np.float32([[-3, 0]]), "y": y})


def test_a_processor_that_lacks_an_instruction_is_told(tmp_path: Path) -> None:
    """Code that was compiled for another one ends in SIGILL."""
    compiled = {**SIGNATURE, "instructions": ["avx2", "avx512f", "avx512_vnni"]}
    (tmp_path / "signature.json").write_text(json.dumps(compiled))
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    shutil.copy(Path(runners.__file__).with_name("checks.py"), tmp_path)
    checks = runpy.run_path(str(tmp_path / "checks.py"))
    about = tmp_path / "cpuinfo"
    about.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f\nbugs\t\t: spectre_v1\n")
    assert checks["lacking"](about) == ["avx512_vnni"]
    assert checks["lacking"](tmp_path / "none") == [], "another system, which does not tell"
    checks["artefact"].__globals__["lacking"] = lambda: ["avx512_vnni"]
    with pytest.raises(ValueError, match="compiled for a processor with avx512_vnni, which this one does not have"):
        checks["artefact"]()
    checks["artefact"].__globals__["lacking"] = list
    assert checks["artefact"]() == str(tmp_path / "model.onnx")
