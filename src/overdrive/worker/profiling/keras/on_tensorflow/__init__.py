"""Keras on TensorFlow: its profiler tells of every operator, and graphs noted as they were traced what each is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overdrive.worker.profiling.keras.graph_details import GraphDetails
from overdrive.worker.profiling.recorder import Details
from overdrive.worker.profiling.timeline import Timeline


def make_details(timeline: Timeline, folder: Path, models: dict[int, Any]) -> Details:
    from overdrive.worker.profiling.keras.on_tensorflow.reader import GraphReader

    return GraphDetails(GraphReader(timeline, folder), folder, models)
