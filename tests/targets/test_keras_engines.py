"""The libraries behind `export` of Keras models, where they are installed: a folder answers as the program did."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Run
from tests.schemas import held

RECURRENT, POOLED = "layers.LSTM(8)", "layers.GlobalMaxPooling1D()"
TRAIN = """
import keras
import numpy as np
from keras import layers
keras.utils.set_random_seed(0)
chance = np.random.default_rng(0)
words, rows = chance.integers(0, 40, (300, 6)), chance.normal(size=(300, 3)).astype("float32")
labels = (rows[:, 0] > 0).astype(int) + (words[:, 0] > 20)
given, more = keras.Input((6,), dtype="int32", name="words"), keras.Input((3,), name="rows")
x = LAYER(layers.Embedding(40, 4)(given))
x = layers.Dense(8, use_bias=False)(layers.Concatenate()([x, more]))
x = layers.Dropout(0.3)(layers.ReLU()(layers.BatchNormalization()(x)))
model = keras.Model({"words": given, "rows": more}, [layers.Dense(3, activation="softmax")(x), x])
model.compile("adam", ["sparse_categorical_crossentropy", None])
model.fit({"words": words[:200], "rows": rows[:200]}, labels[:200], epochs=2, verbose=0)
ASK
"""
ASK = {
    "evaluate": 'model.evaluate({"words": words[200:], "rows": rows[200:]}, labels[200:], batch_size=16, verbose=0)',
    "predict": 'model.predict({"words": words[200:], "rows": rows[200:]}, batch_size=16, verbose=0)',
    "call": "[model({'words': words[n : n + 4], 'rows': rows[n : n + 4]}) for n in range(200, 216, 4)]",
}


def program(layer: str, ask: str) -> str:
    return TRAIN.replace("LAYER", layer).replace("ASK", ASK[ask])


@pytest.fixture(autouse=True)
def installed() -> None:
    for each in ("tensorflow", "keras"):
        pytest.importorskip(each)


def _needs(*names: str) -> None:
    for each in names:
        if not find_spec(each):
            pytest.skip(f"{each} is not installed")


@pytest.mark.parametrize(
    ("target", "needs", "layer", "ask"),
    [
        ("openvino", ("openvino",), POOLED, "evaluate"),
        ("openvino", ("openvino",), POOLED, "call"),
        ("onnx", ("onnxruntime", "tf2onnx"), RECURRENT, "predict"),
        ("triton", ("onnxruntime", "tf2onnx"), POOLED, "call"),
    ],
)
def test_a_folder_answers_as_the_program(
    target: str, needs: tuple[str, ...], layer: str, ask: str, tmp_path: Path, overdrive: Run, python: Run
) -> None:
    _needs(*needs)
    (tmp_path / "train.py").write_text(program(layer, ask))
    done = overdrive("export", "--to", target, "--json", "told.json", "-o", "out", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    held("export", told)
    assert told["model"] == "Functional" and told["proof"]["level"] == "rounding"
    assert {each["name"]: each["shape"] for each in told["signature"]["inputs"]} == {
        "words": ["batch", 6],
        "rows": ["batch", 3],
    }
    assert [each["shape"] for each in told["signature"]["outputs"]] == [["batch", 3], ["batch", 8]]
    assert told["signature"]["values"]["words"]["max"] <= 39 and told["latency"][0]["eager"]["calls"]
    assert not any(each.name.startswith("torch") for each in tmp_path.iterdir())
    page = (tmp_path / "out" / "README.md").read_text()
    assert "by `run.answer`, and the program's own" in page and "PyTorch" not in page
    ran = python(str(tmp_path / "out" / "run.py"), str(tmp_path / "out" / "example.npz"), "answers.npz", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    answers = np.load(tmp_path / "answers.npz")
    assert list(answers) == [each["name"] for each in told["signature"]["outputs"]]
    assert answers["output_0"].sum() == pytest.approx(1, abs=1e-5)
    outside = dict(np.load(tmp_path / "out" / "example.npz"))
    outside["words"][0, 0] = 40
    np.savez(tmp_path / "outside.npz", **outside)
    ran = python(str(tmp_path / "out" / "run.py"), "outside.npz", "answers.npz", cwd=tmp_path)
    assert ran.returncode == 1 and "words holds 40" in ran.stderr


def test_without_what_makes_onnx_of_tensorflow_it_is_named(tmp_path: Path, overdrive: Run) -> None:
    _needs("onnxruntime", "onnxscript")
    hidden = "import sys; sys.modules['tf2onnx'] = None\n"
    (tmp_path / "train.py").write_text(hidden + program(POOLED, "call"))
    done = overdrive("export", "--to", "onnx", "train.py", cwd=tmp_path)
    assert done.returncode == 1 and "tf2onnx, which makes ONNX of TensorFlow, is not installed" in done.stderr
    assert "train.export-onnx" not in os.listdir(tmp_path)


def test_what_openvino_does_not_convert_is_named(tmp_path: Path, overdrive: Run) -> None:
    """The loop of a recurrent layer, in 2026.4."""
    _needs("openvino")
    (tmp_path / "train.py").write_text(program(RECURRENT, "call"))
    done = overdrive("export", "--to", "openvino", "train.py", cwd=tmp_path)
    assert done.returncode == 1 and "No conversion rule found for operations: TensorList" in done.stderr
