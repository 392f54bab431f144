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


@pytest.mark.parametrize("isolation", ["overlay", "redirect"])
@pytest.mark.fault("files")
def test_weights_tables_and_event_files(isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's usual profile, and Ubuntu's, refuse the overlay: there no trial of a Keras program came to an end."""
    import h5py

    monkeypatch.setenv("OVERDRIVE_ISOLATION", isolation)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(WRITES)
    (project / "best.weights.h5").write_text("of a week")
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
