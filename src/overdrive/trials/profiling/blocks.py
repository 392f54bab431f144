"""Times the parts of a step in some blocks of a program, and leaves the others as they are.

So one process is compared with itself: two processes of the same program differ by several percent all the same
(where their memory lies, say), which is as much as the parts of a short step may be off.
"""

from __future__ import annotations

from collections.abc import Callable

from overdrive.seams import frameworks
from overdrive.seams.hub import OBSERVER, Seams
from overdrive.seams.patch import Patches
from overdrive.trials.profiling.timeline import WITHIN, Timeline


class TimedBlocks:
    """Seams of its own, which are entered for a block. The optimizer's are those of the trial, told of only then: a
    block begins and ends within them, where PyTorch is going through its hooks and takes no other."""

    def __init__(self, timeline: Timeline, seams: Seams, framework: str) -> None:
        self._timeline = timeline
        self._trial = seams
        self._framework = framework
        self._own = Seams(lambda owner, reason: seams.leave_out(owner, reason))
        self._own.owner = OBSERVER
        self._leave: Callable[[], None] | None = None
        self._patches = Patches()
        timeline.calls(self._own, models=False)
        seams.step_begins.subscribe(_nothing)  # for the seam to be there
        self._subscribers = timeline.step_begins, timeline.step_ends

    def start(self) -> None:
        begins, ends = self._subscribers
        self._trial.step_begins.subscribe(begins)
        self._trial.step_ends.subscribe(ends)
        self._leave = frameworks.seams_of(self._framework).enter(self._own)
        if self._framework == "torch":
            self._enter_models()
        self._timeline.start()

    def stop(self) -> None:
        self._timeline.stop()
        self._timeline.forget()
        if self._leave:
            self._patches.restore()
            self._leave()
            self._leave = None
        begins, ends = self._subscribers
        self._trial.step_begins.unsubscribe(begins)
        self._trial.step_ends.unsubscribe(ends)

    def _enter_models(self) -> None:
        from overdrive.seams.torch import models, outermost

        if outermost.compiles():
            self._own.model_called.subscribers = []
            self._own.model_called.subscribe(self._timeline.called)
            models.enter(self._own, self._patches)
        else:
            outermost.enter(self._patches, self._timeline, WITHIN, self._timeline.called)


def _nothing(optimizer: object) -> None:
    pass
