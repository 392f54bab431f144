"""Keras's observers of a trial (see `worker.observers`).

`on_NAME` is what digest logs and state replays write with: within TensorFlow's graphs, or on the host.
"""

from __future__ import annotations

import importlib
from typing import Any


def ops() -> Any:
    """The module of that name for Keras's backend, which must be known by now."""
    from overdrive.seams.keras.control import backend

    name = "on_tensorflow" if backend() == "tensorflow" else "on_host"
    return importlib.import_module(f"overdrive.worker.keras.{name}")
