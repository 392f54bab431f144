"""Every naive Keras program, and the example, does under `overdrive run` what it does under `python`."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run
from tests.programs.keras.manifest import PROGRAMS
from tests.programs.manifest import NaiveProgram

_TIMES = re.compile(r"\d+m?s(/step|/epoch)?")  # in Keras's progress lines: "0s", "12ms/step"


@pytest.fixture(autouse=True)
def quiet_and_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, so that sums are split alike; no warnings of TensorFlow; no settings or data of the user."""
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


def skip_without(needs: tuple[str, ...]) -> None:
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (an optional extra)")


def without_times(output: str) -> str:
    """What the program printed, without the seconds in it: of a progress line, what stands there in the end."""
    return "\n".join(_TIMES.sub("TIME", line.rsplit("\b", 1)[-1]) for line in output.splitlines())


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_runs_as_under_python(
    program: NaiveProgram, programs: Path, tmp_path: Path, python: Run, overdrive: Run
) -> None:
    skip_without(program.needs)
    places = {}
    for arm in ("python", "overdrive"):
        places[arm] = shutil.copytree(programs / "keras", tmp_path / arm)
    expected = python(*program.command, cwd=places["python"])
    assert expected.returncode == program.exit_code, expected.stderr
    run = overdrive("run", "--no-plan", *program.command, cwd=places["overdrive"])
    assert run.returncode == program.exit_code, run.stderr
    assert without_times(run.stdout) == without_times(expected.stdout)
    assert "src/overdrive" not in run.stderr and "runpy" not in run.stderr
    assert _files(places["overdrive"]) == _files(places["python"])
    assert program.writes == (len(_files(places["python"])) > len(_files(programs / "keras")))


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", ["fit_callbacks", "train_on_batch"])
def test_runs_as_under_python_on_other_backends(
    name: str,
    backend: str,
    programs: Path,
    tmp_path: Path,
    python: Run,
    overdrive: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """... and is written down step by step."""
    skip_without(("keras", backend))
    monkeypatch.setenv("KERAS_BACKEND", backend)
    places = {arm: shutil.copytree(programs / "keras", tmp_path / arm) for arm in ("python", "overdrive")}
    expected = python(f"{name}.py", cwd=places["python"])
    assert expected.returncode == 0, expected.stderr
    record = tmp_path / "record.json"
    run = overdrive("run", "--no-plan", "--record", str(record), f"{name}.py", cwd=places["overdrive"])
    assert run.returncode == 0, run.stderr
    assert without_times(run.stdout) == without_times(expected.stdout)
    assert _files(places["overdrive"]) == _files(places["python"])
    recorded = json.loads(record.read_text())
    assert len(recorded["losses"]) == recorded["steps"] >= 40
    assert len(recorded["parameters"]) == 64
    if name == "train_on_batch":
        printed = [float(found) for found in re.findall(r"step \d+ loss ([0-9.]+)", expected.stdout)]
        assert [float.fromhex(step[0]) for step in recorded["losses"][::10]] == pytest.approx(printed, abs=1e-5)


_ON_JAX = 'overdrive = 1\nprogram = "{name}.py"\ncontract = "open"\n[[technique]]\nname = "keras_backend"\n'


@pytest.mark.parametrize(("name", "moves"), [("train_on_batch", True), ("tape_loop", False)])
def test_a_program_runs_on_another_backend_where_it_can_and_else_says_what_to_do(
    name: str,
    moves: bool,
    programs: Path,
    tmp_path: Path,
    python: Run,
    overdrive: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that calls TensorFlow by itself cannot."""
    skip_without(("keras", "tensorflow", "jax"))
    plan, record = tmp_path / "plan.toml", tmp_path / "record.json"
    plan.write_text(_ON_JAX.format(name=name))
    given = ("run", "--plan", str(plan), "--record", str(record), f"{name}.py")
    run = overdrive(*given, cwd=programs / "keras")
    if not moves:
        assert run.returncode == 1 and "overdrive run --no-plan" in run.stderr
        return
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    expected = python(f"{name}.py", cwd=programs / "keras")
    assert run.returncode == expected.returncode == 0, run.stderr
    assert without_times(run.stdout) == without_times(expected.stdout)
    recorded = json.loads(record.read_text())
    assert recorded["steps"] > 0 and recorded["techniques"] == ["keras_backend"]


def test_the_example_runs_on_the_files_it_is_given(tmp_path: Path, python: Run) -> None:
    skip_without(("keras", "tensorflow"))
    mnist = tmp_path / "mnist"
    _write_small_mnist(mnist)
    ran = python(str(ROOT / "examples/mnist_keras.py"), "--data", str(mnist), "--epochs", "1", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "4/4" in ran.stdout and "Test loss" in ran.stdout


def _write_small_mnist(folder: Path) -> None:
    """Four files like MNIST's, of 200 training and 50 test images."""
    import gzip

    import numpy as np

    folder.mkdir()
    generator = np.random.default_rng(0)
    for name, count in (("train", 200), ("t10k", 50)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images.tobytes(), 1))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes(), 1))


_ASKS = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.rand(64, 6, 6, 1).astype("float32")
model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Conv2D(3, 3, activation="relu"),
    keras.layers.Flatten(), keras.layers.Dense(4, activation="softmax")])
found = [model.predict(x[i : i + 1], verbose=0).argmax() for i in range(30)]
found += [model(x[i : i + 2]).numpy().argmax() for i in range(30)]
print(*found)
"""
_ASKED = """
overdrive = 1
program = "asks.py"
contract = "rounding"
inference = true
[[technique]]
name = "direct_predict"
[[technique]]
name = "graph_call"
"""


def test_a_program_that_answers_runs_under_a_plan_which_is_verified(
    tmp_path: Path, python: Run, overdrive: Run
) -> None:
    skip_without(("keras", "tensorflow"))
    (tmp_path / "asks.py").write_text(_ASKS)
    (tmp_path / "plan.toml").write_text(_ASKED)
    expected = python("asks.py", cwd=tmp_path)
    given = ("--plan", "plan.toml", "asks.py")
    run = overdrive("run", "--record", "record.json", *given, cwd=tmp_path)
    assert run.stdout == expected.stdout and run.returncode == expected.returncode == 0, run.stderr
    assert "60 calls" in run.stderr and "graph_call answered 27 of 30 calls" in run.stderr
    recorded = json.loads((tmp_path / "record.json").read_text())
    assert (recorded["steps"], recorded["samples"], recorded["left_out"]) == (60, 90, {})
    verified = overdrive("verify", "plan.toml", "asks.py", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "The plan keeps the level" in " ".join(verified.stdout.split())
