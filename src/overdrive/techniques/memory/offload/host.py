"""Activations laid in the main memory between their forward and their backward pass.

Copies run on streams of their own, beside the computing. Two rules keep memory safe without waiting:
a tensor that is being copied out is held until the computing has been told to wait for that copy, and
what is copied in is taken from the computing's own memory, which the copying waits for.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from overdrive.seams.torch.internals import version_of

_OUT_AT_ONCE = 4  # tensors on their way out: more hold GPU memory, fewer make the computing wait
_IN_AHEAD = 3  # tensors brought back before they are asked for


def taken(tensor: torch.Tensor) -> int:
    """Bytes of page-locked memory that torch takes for it: it rounds up to a power of two."""
    return 1 << max(0, tensor.nbytes - 1).bit_length()


class Streams:
    """Copies to and from one GPU, beside what it computes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def out(self, tensor: torch.Tensor, host: torch.Tensor) -> Any:
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            return self._out.record_event()

    def back(self, host: torch.Tensor, copied_out: Any) -> tuple[torch.Tensor, Any]:
        tensor = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=self.device)
        self._in.wait_stream(torch.cuda.current_stream(self.device))
        self._in.wait_event(copied_out)
        with torch.cuda.stream(self._in):
            tensor.copy_(host, non_blocking=True)
            return tensor, self._in.record_event()

    def wait_for(self, event: Any) -> None:
        torch.cuda.current_stream(self.device).wait_event(event)

    def finish(self, event: Any) -> None:
        event.synchronize()

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        return torch.as_strided(plain, tensor.size(), tensor.stride())


class NoStreams:
    """The same by plain copies, on the processor: for tests."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def out(self, tensor: torch.Tensor, host: torch.Tensor) -> Any:
        host.copy_(tensor)

    def back(self, host: torch.Tensor, copied_out: Any) -> tuple[torch.Tensor, Any]:
        tensor = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=self.device)
        return tensor.copy_(host), None

    def wait_for(self, event: Any) -> None:
        pass

    def finish(self, event: Any) -> None:
        pass

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(torch.empty(tensor.numel(), dtype=tensor.dtype), tensor.size(), tensor.stride())


class Away:
    """A tensor in the main memory; `here` is its copy on the device, once that is under way."""

    def __init__(self, shelf: Shelf, number: int, host: torch.Tensor, copied_out: Any) -> None:
        self._shelf = shelf
        self._number = number
        self.host = host
        self.copied_out = copied_out
        self._here: tuple[torch.Tensor, Any] | None = None

    def bring(self) -> None:
        if self._here is None:
            self._here = self._shelf.streams.back(self.host, self.copied_out)

    def take(self) -> torch.Tensor:
        self.bring()
        assert self._here is not None
        tensor, arrived = self._here
        self._shelf.streams.wait_for(arrived)
        self._here = None  # the operation that asked holds it now; asked again, it comes again
        self._shelf.bring_those_before(self._number)
        return tensor

    def alone(self) -> torch.Tensor:
        """As `take`, by the plainest means."""
        self._shelf.streams.finish(self.copied_out)
        return self.host.to(self._shelf.streams.device, copy=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # Python would print it
            if self._here is not None:  # its memory goes back to the computing, which may not use it before it arrived
                self._shelf.streams.wait_for(self._here[1])
            self._shelf.freed(taken(self.host))


@dataclass
class Stayed:
    """A saved tensor that stays where it is."""

    tensor: torch.Tensor


class Shelf:
    """What one program's forward passes have laid in the main memory, and the room that there is."""

    def __init__(self, streams: Streams | NoStreams, room: int, least: int) -> None:
        self.streams = streams
        self._room = room  # bytes of the main memory
        self._least = least  # bytes; smaller tensors are not worth a copy
        self._bytes = 0
        self.laid = 0  # bytes, in all
        self._number = 0
        self._places: weakref.WeakValueDictionary[int, Away] = weakref.WeakValueDictionary()
        self._leaving: deque[tuple[torch.Tensor, Any]] = deque()
        # Laid away in this call, by memory and view of it: a tensor that two operations save goes once.
        # The reference to its memory keeps the key from meaning another block.
        self._known: dict[Any, tuple[weakref.ref[Away], StorageWeakRef]] = {}

    def hooks(self, own: set[int]) -> torch.autograd.graph.saved_tensors_hooks:
        """For one call of a model; `own`: the addresses of its parameters' and buffers' memory, which stay."""

        def pack(tensor: torch.Tensor) -> Any:
            plain = tensor.detach()  # with its history, what an operation saves of its own result would hold itself
            if not self._worth_it(plain) or plain.untyped_storage().data_ptr() in own:
                return Stayed(plain)
            return self._lay(plain)

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, Stayed):
                return packed.tensor
            try:
                found: torch.Tensor = packed.take()
            except Exception:  # no room to bring some more ahead, say: in a backward pass nothing else can be done
                found = packed.alone()
            return found

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def end_of_call(self) -> None:
        """The computing waits for what is still on its way out; nothing of the device's memory is held any more."""
        while self._leaving:
            self._let_go()
        self._known.clear()

    def bring_those_before(self, number: int) -> None:
        """The backward pass goes from last to first."""
        for earlier in range(number - 1, max(-1, number - 1 - _IN_AHEAD), -1):
            if (away := self._places.get(earlier)) is not None:
                away.bring()

    def freed(self, size: int) -> None:
        self._bytes -= size

    def _worth_it(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.device == self.streams.device
            and tensor.layout is torch.strided
            and tensor.nbytes >= self._least
            and torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
        )

    def _lay(self, tensor: torch.Tensor) -> Any:
        memory = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        view = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype)
        key = (memory.cdata, version_of(tensor), *view)
        known = self._known.get(key)
        if known is not None and (away := known[0]()) is not None:
            return away
        if self._bytes + taken(tensor) > self._room:
            return Stayed(tensor)
        host = self.streams.host(tensor)
        copied_out = self.streams.out(tensor, host)
        away = Away(self, self._number, host, copied_out)
        self._places[self._number] = away
        self._number += 1
        self._bytes += taken(host)
        self.laid += host.nbytes
        self._leaving.append((tensor, copied_out))
        self._known[key] = weakref.ref(away), memory
        if len(self._leaving) > _OUT_AT_ONCE:
            self._let_go()
        return away

    def _let_go(self) -> None:
        tensor, copied_out = self._leaving.popleft()
        self.streams.wait_for(copied_out)
        del tensor
