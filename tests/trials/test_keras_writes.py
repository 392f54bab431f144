"""What trials of Keras programs write past Python, by HDF5 and TensorFlow: read back by them, and thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

pytest.importorskip("keras")
pytest.importorskip("tensorflow")

WRITES = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import h5py, keras, numpy as np, tensorflow as tf

x, y = np.random.rand(64, 4).astype("float32"), np.random.rand(64, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, epochs=2, verbose=0, callbacks=[
    keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True),
    keras.callbacks.ModelCheckpoint("best.keras"),
])
writer = tf.summary.create_file_writer("logs/train")  # as Keras's callback for TensorBoard does
with writer.as_default():
    tf.summary.write("loss", 0.5, step=1)
writer.close()
model.load_weights("best.weights.h5")
keras.models.load_model("best.keras")
os.makedirs("new")
model.save("new/old.h5")
with h5py.File("table.h5", "a") as table:
    assert table["rows"][0] == 7
    table["rows"][0] = 8
with h5py.File("table.h5") as table:
    assert table["rows"][0] == 8
for mode in ("a", "r+"):
    with h5py.File("another.h5", mode) as table:
        table.attrs[mode] = 1
try:
    h5py.File("another.h5", "x")
except FileExistsError:
    pass
else:
    raise AssertionError
h5py.File("one.h5", "x").close()
assert any("events" in each for each in os.listdir("logs/train"))
"""

OF_TENSORFLOW = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 4), "float32"), np.ones((64, 1), "float32"), epochs=2, verbose=0)

with tf.io.gfile.GFile("notes.txt", "a") as notes:
    notes.write(", and more")
assert open("notes.txt").read() == tf.io.gfile.GFile("notes.txt").read() == "of a week, and more"
tf.io.gfile.makedirs("made/deep")
open("made/deep/by_python", "w").close()
assert tf.io.gfile.listdir("made/deep") == ["by_python"] and tf.io.gfile.exists("made/deep/by_python")
tf.io.gfile.rename("made", "moved")
tf.io.gfile.copy("notes.txt", "moved/copied")
assert sorted(os.listdir("moved")) == ["copied", "deep"] and not tf.io.gfile.exists("made")
tf.io.gfile.rmtree("moved")
tf.io.gfile.remove("old.txt")
assert not os.path.exists("old.txt") and tf.io.gfile.glob("*.txt") == ["./notes.txt"]
for refused, name, other in (("NotFoundError", "nowhere/a", None), ("AlreadyExistsError", "notes.txt", "train.py")):
    try:
        tf.io.gfile.copy(name, other) if other else tf.io.gfile.GFile(name, "w").write("a")
    except getattr(tf.errors, refused):
        pass
    else:
        raise AssertionError(refused)

weight = tf.Variable([1.0, 2.0])
checkpoint = tf.train.Checkpoint(weight=weight)
manager = tf.train.CheckpointManager(checkpoint, "kept", max_to_keep=1)
manager.save(), manager.save()
weight.assign([0.0, 0.0])
checkpoint.restore(tf.train.latest_checkpoint("kept")).assert_consumed()
assert weight.numpy().tolist() == [1, 2] and manager.checkpoints == ["kept/ckpt-2"]
model.export("exported", verbose=False)
tf.saved_model.load("exported")
model.save_weights("all.weights.h5")

tf.io.write_file("written.txt", "new")
assert tf.io.read_file("written.txt") == b"new"
with tf.io.TFRecordWriter("records") as records:
    records.write(b"one")
assert [each.numpy() for each in tf.data.TFRecordDataset(["records"])] == [b"one"]
for _ in range(2):
    assert len(list(tf.data.Dataset.range(3).cache("cached"))) == 3
tf.data.Dataset.range(3).save("samples")
assert len(list(tf.data.Dataset.load("samples"))) == 3
"""


@pytest.mark.parametrize("isolation", ["overlay", "redirect"])
@pytest.mark.fault("files")
def test_weights_tables_and_event_files(isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's usual profile, and Ubuntu's, refuse the overlay: there no trial of a Keras program came to an end."""
    _keeps_all(WRITES, isolation, tmp_path, monkeypatch)


@pytest.mark.parametrize("isolation", ["overlay", "redirect"])
@pytest.mark.fault("files")
def test_what_tensorflow_writes_in_cpp(isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _keeps_all(OF_TENSORFLOW, isolation, tmp_path, monkeypatch)


def _keeps_all(program: str, isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to its end, and its folder is as it was."""
    import h5py

    monkeypatch.setenv("OVERDRIVE_ISOLATION", isolation)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(program)
    for name in ("best.weights.h5", "notes.txt", "old.txt"):
        (project / name).write_text("of a week")
    with h5py.File("table.h5", "w") as table:
        table["rows"] = [7]
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    with TrialPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(project / "train.py"), (), False)))
        trial.first_step()
        with pytest.raises(TrialOver) as over:
            trial.run(1000)
        trial.stop()
    assert over.value.exit_reason.kind == "ended", over.value
    assert {path.name: path.read_bytes() for path in project.iterdir()} == before
