"""Starts a driver: a module that runs Keras on one backend, and prints what it came to as one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.conftest import ROOT


def told_by(module: str, backend: str, *words: str, needs: tuple[str, ...] = (), **environment: str) -> dict[str, Any]:
    """What `python -m MODULE WORDS` tells, on the CPU; skips the test where a package is missing."""
    missing = [name for name in ("keras", backend, *needs) if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    ours = {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment}
    ran = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return {**found, "backend": backend}
