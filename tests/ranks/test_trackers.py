"""Trackers of experiments, which are to see one run and not as many as there are ranks."""

from __future__ import annotations

import os

import pytest

from overdrive.ranks.trackers import keep_here


def test_what_ranks_would_send_stays_here_until_they_are_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_MODE", "CLEARML_OFFLINE_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    before = dict(os.environ)
    put_back = keep_here()
    assert os.environ["WANDB_MODE"] == "offline" and os.environ["MLFLOW_TRACKING_URI"] == "file:mlruns"
    put_back()
    assert dict(os.environ) == before


def test_who_sends_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    put_back = keep_here()
    assert os.environ["WANDB_MODE"] == "disabled" and "MLFLOW_TRACKING_URI" not in os.environ
    put_back()
