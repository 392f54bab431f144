"""Technique `deferred_scalars`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_MOST_MARKS = 8  # losses of one step that are remembered: gradient accumulation, a GAN


class DeferredScalars(Technique):
    """Reads a loss back as soon as the GPU has computed it, and leaves the rest of the step to run on.

    What it does: `loss.item()` after a step waits until the GPU has done the whole step, and meanwhile nothing new is
    given to it. Here a mark is set when the loss is sent backward, and what was computed before the mark (the loss, its
    parts) is copied on a stream of its own that waits for the mark only. So the backward pass and the update go on
    while the program fetches its next batch and calls its model. The number is an ordinary `float`.

    When it helps: programs that read a loss in every step and keep the GPU busy for about as long as the next forward
    pass takes to be launched.

    When it hurts: numbers that are computed after the mark (an accuracy) are read as before. Where the processor is
    slower than the GPU nothing waits, and each early read costs some microseconds more.

    What it watches: how often a loss, or a part of it, was written to since the mark, in which thread and on which
    device, at each reading. What would escape: writes through `.data` to the loss itself, and a part of the loss that
    another stream computes. With several processes (torch.distributed), whose collectives write uncounted, it stands
    back.

    Contract: exact. The same bytes are read, and only from a tensor that nothing has been written to since the mark.

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (avoid unnecessary CPU-GPU
    synchronization); docs/decisions/007 says why no other object stands in for the number.
    """

    name = "deferred_scalars"
    contract = Contract.EXACT
    computes = False
    targets = ("data", "other")  # what the program does while the GPU goes on
    expected_saving = 0.3
    switchable = True
    order = 20  # the loss as the program made it, before autocast scales it

    line: Callable[[], Line] | None = None  # another way to the device than CUDA's: tests have one without a GPU

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return "the program runs on the CPU, where a number is there at once"
        if self.own(facts).get("reads") == 0:
            return "the program reads no number back from the GPU in its steps"
        return None

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        reads = [0]

        def read(tensor: Any, call: Callable[[], Any]) -> Any:
            reads[0] += tensor.is_cuda
            return call()

        seams.scalar_read.subscribe(read)
        return lambda: {"reads": reads[0]}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        early = EarlyReads(self.line or Stream)
        seams.loss_backward.subscribe(early.sent_backward)
        seams.scalar_read.subscribe(early.read)
        seams.on_undo(early.forget)
        return seams.handle(off=early.forget, notes=early)


class Line(Protocol):
    """How tensors of a device are read."""

    def serves(self, tensor: Any) -> bool: ...

    def mark(self, tensor: Any) -> Any:
        """A point in the work of the tensor's device: after all that it has been given so far."""

    def read(self, tensor: Any, mark: Any) -> Any:
        """The number in `tensor` when the device has come to the mark."""


@dataclass(frozen=True)
class _Mark:
    point: Any
    thread: int
    sequence: int  # autograd's number of the loss: what has a lower one was computed before
    loss: Any  # detached; held so that its memory is not given to another tensor
    version: int


class EarlyReads:
    """Subscribers of the seams: marks, and what may be read at which of them."""

    def __init__(self, line: Callable[[], Line]) -> None:
        self._make_line = line
        self._line: Line | None = None
        self._marks: deque[_Mark] = deque(maxlen=_MOST_MARKS)
        self.reads = 0  # that were early

    def sent_backward(self, loss: Any) -> Any:
        from overdrive.seams.torch.internals import is_view, number_of, version_of

        line = self._line = self._line or self._make_line()
        node = loss.grad_fn
        # A view shares its memory with a tensor that may be written to uncounted (`parameter.data -= ...`).
        if node is None or loss.numel() != 1 or not line.serves(loss) or is_view(loss) or _several_processes():
            return loss
        point, sequence = line.mark(loss), number_of(node)
        self._marks.append(_Mark(point, threading.get_ident(), sequence, loss.detach(), version_of(loss)))
        return loss

    def read(self, tensor: Any, call: Callable[[], Any]) -> Any:
        mark = self._mark_after(tensor)
        if mark is None:
            return call()
        assert self._line is not None
        self.reads += 1
        return self._line.read(tensor, mark.point)

    def forget(self) -> None:
        self._marks.clear()

    def _mark_after(self, tensor: Any) -> _Mark | None:
        """The first mark by which this tensor held what it holds now, where that is certain."""
        if not self._marks or self._line is None or not self._line.serves(tensor) or tensor.numel() != 1:
            return None
        from overdrive.seams.torch.internals import is_view, number_of, writes_to

        thread, place, device = threading.get_ident(), tensor.data_ptr(), tensor.device
        counted = writes_to(tensor)
        made = number_of(tensor.grad_fn) if tensor.grad_fn is not None and not is_view(tensor) else None
        for mark in self._marks:
            loss = mark.loss
            if mark.thread != thread or loss.device != device:
                continue
            if loss.data_ptr() == place and loss.dtype == tensor.dtype:
                if counted == mark.version:
                    return mark
            elif made is not None and made < mark.sequence and counted == 0:
                return mark
        return None


class Stream:
    """CUDA: a stream beside the program's, and memory that the GPU can write to by itself."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._streams: dict[Any, Any] = {}
        self._memory: dict[Any, Any] = {}

    def serves(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda) and not self._torch.cuda.is_current_stream_capturing()

    def mark(self, tensor: Any) -> Any:
        return self._torch.cuda.current_stream(tensor.device).record_event()

    def read(self, tensor: Any, mark: Any) -> Any:
        torch = self._torch
        stream = self._streams.get(tensor.device)
        if stream is None:
            stream = self._streams[tensor.device] = torch.cuda.Stream(tensor.device, priority=-1)
        memory = self._memory.get(tensor.dtype)
        if memory is None:
            memory = self._memory[tensor.dtype] = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        with torch.no_grad(), torch.cuda.stream(stream):
            stream.wait_event(mark)
            memory.copy_(tensor.detach().reshape(()), non_blocking=True)
        stream.synchronize()  # so the memory is free for the next, and the tensor may go
        return memory.tolist()


def _several_processes() -> bool:
    """Collective operations write to their tensors without autograd counting it."""
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
