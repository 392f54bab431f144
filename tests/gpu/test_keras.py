"""Keras's arrays held on a GPU: not yet run on one. Skipped, saying so, where Keras's backend sees none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_arrays_are_held_on_the_gpu(backend: str) -> None:
    missing = [name for name in ("keras", backend) if find_spec(name) is None]
    if missing or not os.path.exists("/dev/nvidiactl"):
        pytest.skip(f"needs {', '.join(missing) or 'a GPU (CUDA), and there is none here'}")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.techniques.resident_arrays_driver"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    if not found["gpus"]:
        pytest.skip(f"{backend} sees no GPU here")
    plain, held = found["plain"], found["held"]
    assert held["left_out"] == {} and held["made"] == 4
    assert any("gpu" in each.lower() or "cuda" in each for each in found["places"])
    assert held["losses"] == pytest.approx(plain["losses"], rel=1e-4)  # sums on a GPU differ from run to run
