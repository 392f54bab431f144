"""Where the phases of a PyTorch program's step begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.answering import AnsweringModel
from overdrive.seams.hub import Seams
from overdrive.seams.torch.control import synchronize
from overdrive.worker.profiling.timeline import Timeline

# A module that is called in one of these belongs to it.
WITHIN = frozenset(("data", "copy", "forward", "evaluation", "backward", "synchronisation"))


def make_timeline(seams: Seams) -> Timeline:
    timeline = timeline_here()
    Phases(timeline, seams.inference)(seams)
    return timeline


def timeline_here() -> Timeline:
    return Timeline(synchronize if torch.cuda.is_available() else None)


class Phases:
    """Tells a timeline of them."""

    def __init__(self, timeline: Timeline, inference: bool) -> None:
        """`inference`: the program trains nothing, and what else would be an evaluation is its step."""
        self._timeline = timeline
        self._inference = inference

    def __call__(self, seams: Seams) -> None:
        within = self._timeline.within
        seams.loader_opens.subscribe(lambda _, call: within("data", call))
        seams.batch_awaited.subscribe(lambda _, call, *args: within("data", call, *args))
        seams.model_called.subscribe(self.called)
        seams.loss_backward.subscribe(self._backward_begins)
        seams.backward_done.subscribe(lambda _: self._timeline.end("backward"))
        seams.step_begins.subscribe(self.step_begins)
        seams.step_ends.subscribe(self.step_ends)
        self.transfers(seams)

    def transfers(self, seams: Seams) -> None:
        """Copies and reads only."""
        # Only where a read waits for something: Adam alone reads 2 numbers a parameter on a CPU, and passing the seam
        # for each took a quarter of a step of 3.5 ms. There, reads are told from a recording.
        if self._timeline.waits:
            seams.scalar_read.subscribe(lambda _, call: self._timeline.within("synchronisation", call))
            seams.tensor_moved.subscribe(lambda _, call, device: self._timeline.within("copy", call, device))

    def step_begins(self, optimizer: Any) -> None:
        if not isinstance(optimizer, AnsweringModel):
            self._timeline.begin("optimizer")

    def step_ends(self, optimizer: Any) -> None:
        if not isinstance(optimizer, AnsweringModel):
            self._timeline.end("optimizer")

    def called(self, module: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inference:
            self._timeline.move()
        if self._timeline.phase in WITHIN:  # transforms of a data set may be modules, too
            return call(*args, **kwargs)
        phase = "forward" if self._inference or torch.is_grad_enabled() else "evaluation"
        return self._timeline.within(phase, call, *args, **kwargs)

    def _backward_begins(self, loss: Any) -> Any:
        if self._timeline.phase != "backward":  # one call may send several losses
            self._timeline.begin("backward")
        return loss
