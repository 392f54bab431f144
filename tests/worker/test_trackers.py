"""A run's record in TensorBoard, MLflow and Weights & Biases: read back by their own packages, where these are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from overdrive.core.run_record import RunRecord
from overdrive.worker.trackers import CannotSend, is_tracker, send
from tests.conftest import Run

RECORD = RunRecord(
    program="train.py --epochs 3",
    steps=3,
    samples_per_s=100.0,
    loss_values=((2.0,), (1.0, 0.5), ()),
    learning_rates=(0.1, 0.2),
    techniques=("threads",),
)


@pytest.mark.parametrize(
    ("place", "tracker"),
    [("tensorboard:runs", True), ("mlflow:", True), ("wandb:x", True), ("mlflow", False), ("a:b.json", False)],
)
def test_a_place_with_a_colon_after_its_name_is_a_tracker(place: str, tracker: bool) -> None:
    assert is_tracker(place) is tracker


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    send(RECORD, f"tensorboard:{tmp_path}")
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(1, 2.0), (2, 1.5)]
    assert [each.step for each in found.Scalars("learning_rate")] == [1, 2]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the other kind takes SQLAlchemy
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    send(RECORD, "mlflow:here")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("here").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["techniques"] == "threads"
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in losses] == [(1, 2.0), (2, 1.5)]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    send(RECORD, "wandb:here")
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    for _ in range(100):  # its own process may still be writing
        if b"learning_rate" in kept.read_bytes():
            break
        time.sleep(0.1)
    assert b"learning_rate" in kept.read_bytes() and b"train.py --epochs 3" in kept.read_bytes()


class _OpenRun:
    """Of the script itself."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def log(self, *_: object, **__: object) -> None:
        self.seen.append("log")

    def finish(self, **_: object) -> None:
        self.seen.append("finish")


@pytest.mark.parametrize("knows", [True, False])
def test_the_run_that_a_script_has_open_at_weights_and_biases_stays_its_own(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(reinit: Literal["default", "create_new"] = "default", **_: object) -> _OpenRun:
        return ours if reinit == "create_new" else theirs

    def init_of_old(reinit: bool = False, **_: object) -> _OpenRun:
        return theirs

    theirs, ours = _OpenRun(), _OpenRun()
    made: Any = ModuleType("wandb")
    made.run, made.init, made.Settings = theirs, init if knows else init_of_old, dict
    monkeypatch.setitem(sys.modules, "wandb", made)
    if knows:
        send(RECORD, "wandb:here")
        assert ours.seen == ["log", "log", "finish"]
    else:
        with pytest.raises(CannotSend, match="the script's own run is open"):
            send(RECORD, "wandb:here")
    assert not theirs.seen


def test_what_is_not_installed_is_told_and_the_run_goes_on(
    script: Callable[[str], Path], overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(CannotSend, match="the record was not sent to wandb: wandb is not installed"):
        send(RECORD, "wandb:here")
    path = script("import sys\nsys.modules['mlflow'] = None\nprint('whole')\n")
    done = overdrive("run", "--record", "mlflow:", "train.py", cwd=path.parent)
    assert done.returncode == 0 and done.stdout == "whole\n"
    assert "the record was not sent to mlflow: mlflow is not installed" in done.stderr
    assert [each.name for each in path.parent.iterdir()] == ["train.py"]
