"""What a trial records of a PyTorch program for `overdrive profile`."""

from __future__ import annotations

from pathlib import Path

from overdrive.seams.hub import Seams
from overdrive.worker.profiling.recorder import Details, Timed
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.profiling.torch.phases import make_timeline, timeline_here

__all__ = ["make_details", "make_timed", "make_timeline"]


def make_timed(seams: Seams) -> tuple[Timeline, Timed]:
    from overdrive.worker.profiling.torch.blocks import TimedBlocks

    timeline = timeline_here()
    return timeline, TimedBlocks(timeline, seams)


def make_details(timeline: Timeline, folder: Path) -> Details:
    from overdrive.worker.profiling.torch.details import TorchDetails

    return TorchDetails(timeline, folder)
