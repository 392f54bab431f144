"""The variables of a trial's processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import _environment
from tests.simulated import target


def test_deterministic_operations_give_cublas_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses each product of matrices on a GPU otherwise, and blames that."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    plain = TrialSpec(target(tmp_path))
    careful = TrialSpec(plain.program, deterministic=True)
    with TrialPool(isolate=False) as pool:
        assert "CUBLAS_WORKSPACE_CONFIG" not in _environment(pool, plain)
        assert _environment(pool, careful)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        assert _environment(pool, careful)["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
