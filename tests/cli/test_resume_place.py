"""Where `overdrive verify --resume` runs a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overdrive.cli.resume_place import Place
from overdrive.core.program import Program

# As in MLflow 3.17: what finds the address of a store.
RESOLVES = "import os\ndef _resolve_tracking_uri(uri=None): return uri or os.environ['MLFLOW_TRACKING_URI']\n"
TELLS = """
import json, os
from mlflow.tracking._tracking_service import utils
told = {name: os.environ.get(name) for name in ("WANDB_MODE", "COMET_MODE", "MLFLOW_RUN_ID")}
json.dump({**told, "set": utils._resolve_tracking_uri(), "named": utils._resolve_tracking_uri("http://server")},
          open("told.json", "w"))
"""


def test_its_runs_tell_no_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a server that the program names."""
    root = tmp_path / "root"
    service = root / "mlflow" / "tracking" / "_tracking_service"
    service.mkdir(parents=True)
    for folder in (root / "mlflow", root / "mlflow" / "tracking", service):
        (folder / "__init__.py").touch()
    (service / "utils.py").write_text(RESOLVES)
    (root / "mlflow" / "__init__.py").write_text("import mlflow.tracking._tracking_service.utils\n")
    (root / "train.py").write_text(TELLS)
    monkeypatch.chdir(root)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://server:5000")
    monkeypatch.setenv("MLFLOW_RUN_ID", "1")
    place = Place(tmp_path / "runs", "whole", Program("train.py"), None, "seed", root)
    assert place.run_alone() == 0
    store = (tmp_path / "runs" / "whole" / "mlruns").as_uri()
    assert json.loads((place.folder / "told.json").read_text()) == {
        "WANDB_MODE": "offline", "COMET_MODE": "offline", "MLFLOW_RUN_ID": None, "set": store, "named": store
    }  # fmt: skip
