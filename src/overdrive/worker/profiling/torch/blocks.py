"""Times the parts of a step in some blocks of a PyTorch program, and leaves the others as they are.

So one process is compared with itself: two processes of the same program differ by several percent all the same
(where their memory lies, say), which is as much as the parts of a short step may be off.
"""

from __future__ import annotations

from collections.abc import Callable

from overdrive.seams import frameworks
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.points import OBSERVER
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.profiling.torch.phases import WITHIN, Phases


class TimedBlocks:
    """Seams of its own, which are entered for a block. The optimizer's are those of the trial, told of only then: a
    block begins and ends within them, where PyTorch is going through its hooks and takes no other."""

    def __init__(self, timeline: Timeline, seams: Seams) -> None:
        self._timeline = timeline
        self._phases = Phases(timeline, seams.inference)
        self._trial = seams
        self._own = Seams(lambda owner, reason: seams.leave_out(owner, reason))
        self._own.owner = OBSERVER
        self._patches = Patches()
        self._leave: list[Callable[[], None]] = []
        self._phases.transfers(self._own)
        seams.step_begins.subscribe(_nothing)  # for the seam to be there

    def start(self) -> None:
        from overdrive.seams.torch import marks

        self._trial.step_begins.subscribe(self._phases.step_begins)
        self._trial.step_ends.subscribe(self._phases.step_ends)
        self._leave = [self._patches.restore]
        marks.enter(self._patches, self._timeline, self._phases.called, WITHIN)
        self._leave.append(frameworks.seams_of("torch").enter(self._own))
        self._timeline.start()

    def stop(self) -> None:
        self._timeline.stop()
        self._timeline.forget()
        while self._leave:
            self._leave.pop()()
        self._trial.step_begins.unsubscribe(self._phases.step_begins)
        self._trial.step_ends.unsubscribe(self._phases.step_ends)


def _nothing(optimizer: object) -> None:
    pass
