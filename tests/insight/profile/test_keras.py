"""`overdrive profile` of a Keras program from end to end, on each backend."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_profile import profiled

SCRIPT = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x, y = np.random.rand(640, 12, 12, 1).astype("float32"), np.random.randint(0, 10, 640)
model = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 3, activation="relu", name="first"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax", name="last"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=32, epochs=100000, verbose=0, validation_data=(x[:64], y[:64]))
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("keras", "tensorflow"):
        if find_spec(name) is None:
            pytest.skip(f"needs {name} (an optional extra)")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


TRAINED = 4 * (3 * 3 * 8 + 8 + 800 * 10 + 10)  # bytes


def judge(result: dict[str, Any], said: str) -> None:
    """What holds on every backend."""
    parts = result["parts"]
    assert sum(parts.values()) == pytest.approx(result["parts_sum"])
    for part in ("forward", "backward", "optimizer", "python", "watching", "evaluation"):
        assert parts[part] > 0, part
    assert parts["graph"] < 0.2 * result["parts_sum"]  # what an optimization made, and is named as nothing else
    assert set(result["left_out"]) == {"lines"}
    modules = {each["module"].split(".")[-1]: each for each in result["modules"]}
    assert modules["first"]["forward"] > 0 and modules["last"]["backward"] > 0
    assert result["bottleneck"]["sentence"] in said


def test_a_profile_of_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("overdrive.insight.profile.measure._MOST_STEPS", 100)
    result, html, trace = profiled(monkeypatch, tmp_path / "train.py", SCRIPT)
    judge(result, " ".join(capsys.readouterr().out.split()))
    rows = {(each["operator"].split("Fused")[-1], each["phase"]): each for each in result["operators"]}
    assert result["operator_seconds"] > 0
    convolution = rows["Conv2D", "forward"]
    assert convolution["flops"] == pytest.approx(2 * 32 * 8 * 10 * 10 * 3 * 3, rel=0.1)
    assert convolution["of_roof"] > 0 and convolution["shapes"]
    assert any("Conv2DBackpropFilter" in name and phase == "backward" for name, phase in rows)
    standing = result["memory"]["standing"]
    assert standing["parameters"] == TRAINED and 2 * TRAINED <= standing["optimizer state"] < 2 * TRAINED + 100
    assert any("Conv2D" in event["name"] for event in trace["traceEvents"])
    assert "Overdrive&#39;s own watching" in html or "Overdrive's own watching" in html
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "p.html",
        "p.json",
        "t.json",
        "train.py",
    ]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_profile_on_another_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr("overdrive.insight.profile.measure._MOST_STEPS", 60)
    result, _, trace = profiled(monkeypatch, tmp_path / "train.py", SCRIPT)
    judge(result, " ".join(capsys.readouterr().out.split()))
    assert result["parts"]["data"] > 0
    convolution = "convolution" if backend == "jax" else "aten::convolution"
    rows = {(each["operator"], each["phase"]): each for each in result["operators"]}
    assert rows[convolution, "forward"]["flops"] == pytest.approx(2 * 32 * 8 * 10 * 10 * 3 * 3, rel=0.1)
    assert rows[convolution, "forward"]["of_roof"] > 0 and rows[convolution, "forward"]["shapes"]
    memory = result["memory"]["standing"] if backend == "jax" else result["memory"]["peak"]
    assert TRAINED <= memory["parameters"] < TRAINED + 1000  # with what counts in it, seeds of generators, say
    assert 2 * TRAINED <= memory["optimizer state"] < 2 * TRAINED + 1000
    assert trace["traceEvents"]
