"""Trackers of experiments, which are to see one run and not as many as there are ranks."""

from __future__ import annotations

import os

import pytest

from overdrive.ranks.trackers import keep_here, kept_here


def test_what_ranks_would_send_stays_here_until_they_are_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_MODE", "CLEARML_OFFLINE_MODE", "COMET_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    before = dict(os.environ)
    put_back = keep_here()
    assert os.environ["WANDB_MODE"] == "offline" and os.environ["MLFLOW_TRACKING_URI"] == "file:mlruns"
    put_back()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("address", "server"),
    [
        *((server, True) for server in ("https://server", "databricks://profile", "databricks", "postgresql://a/b")),
        *((files, False) for files in ("", "./mlruns", "file:///mlruns", "sqlite:///mlflow.db")),
    ],
)
def test_mlflow_tells_a_server_and_no_file_of_its_own(address: str, server: bool) -> None:
    told = kept_here({"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "1"}, "file:///here")
    assert (told.get("MLFLOW_TRACKING_URI") == "file:///here") is server
    assert ("MLFLOW_RUN_ID" in told) is server  # which the folder does not know: taken away
    models = kept_here({"MLFLOW_REGISTRY_URI": address}, "file:///here")
    assert ("MLFLOW_REGISTRY_URI" in models) is server and "MLFLOW_TRACKING_URI" not in models


def test_trackers_that_are_asked_by_a_variable_are_offline() -> None:
    told = kept_here({"NEPTUNE_MODE": "async", "COMET_MODE": "ONLINE", "SWANLAB_MODE": "cloud"}, "")
    assert told["NEPTUNE_MODE"] == "offline" and told["CLEARML_OFFLINE_MODE"] == "1"
    assert (told["COMET_MODE"], told["COMET_START_ONLINE"], told["SWANLAB_MODE"]) == ("offline", "0", "disabled")
    silent = kept_here({"NEPTUNE_MODE": "debug", "COMET_MODE": "DISABLED", "SWANLAB_MODE": "local"}, "")
    assert not {"NEPTUNE_MODE", "COMET_MODE", "SWANLAB_MODE"} & silent.keys()


def test_who_sends_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    put_back = keep_here()
    assert os.environ["WANDB_MODE"] == "disabled" and "MLFLOW_TRACKING_URI" not in os.environ
    put_back()
