"""What a trial records of a Keras program for `overdrive profile`; each backend's own ways are in `on_NAME`."""

from __future__ import annotations

from pathlib import Path

from overdrive.seams.hub import Seams
from overdrive.worker.profiling.keras.phases import make_timeline
from overdrive.worker.profiling.recorder import Details, Timed
from overdrive.worker.profiling.timeline import Timeline

__all__ = ["make_details", "make_timed", "make_timeline"]


def make_timed(seams: Seams) -> tuple[Timeline, Timed]:
    timeline = make_timeline(seams)
    return timeline, timeline


def make_details(timeline: Timeline, folder: Path) -> Details:
    from overdrive.worker.profiling.keras.details import KerasDetails

    return KerasDetails(timeline, folder)
