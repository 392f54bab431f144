"""Where the phases of a PyTorch program's step begin and end."""

from __future__ import annotations

from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.trials.profiling.timeline import Timeline


def make_timeline(seams: Seams) -> Timeline:
    timeline = Timeline(_device_waits if torch.cuda.is_available() else None)
    watch(timeline, seams)
    return timeline


def watch(timeline: Timeline, seams: Seams) -> None:
    seams.batch_awaited.subscribe(lambda _, call, *args: timeline.within("data", call, *args))
    seams.loss_backward.subscribe(lambda loss: _backward_begins(timeline, loss))
    seams.backward_done.subscribe(lambda _: timeline.end("backward"))
    seams.step_begins.subscribe(lambda _: timeline.begin("optimizer"))
    seams.step_ends.subscribe(lambda _: timeline.end("optimizer"))

    def called(module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        return timeline.within("forward" if torch.is_grad_enabled() else "evaluation", call, *args, **kwargs)

    seams.model_called.subscribe(called)
    # Only where a read waits for something: Adam alone reads 2 numbers a parameter on a CPU, and passing the seam
    # for each took a quarter of a step of 3.5 ms. There, reads are told from a recording.
    if timeline.waits:
        seams.scalar_read.subscribe(lambda _, call: timeline.within("synchronisation", call))
        seams.tensor_moved.subscribe(lambda _, call, device: timeline.within("copy", call, device))


def _backward_begins(timeline: Timeline, loss: Any) -> Any:
    if timeline.phase != "backward":  # one call may send several losses
        timeline.begin("backward")
    return loss


def _device_waits() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
