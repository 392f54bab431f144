"""Copies batches to another device before the program asks for them with `.to(device)`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from overdrive.seams.hub import Handle, Seams
from overdrive.seams.parameters import parameters_of

# A program that moves its batches in another way (a copy of them first, say) gets no more made in vain.
_MOST_IN_VAIN = 8

Give = Callable[[], Any]


@dataclass(frozen=True)
class _Offer:
    tensor: Any  # a weak reference
    version: int
    device: Any
    give: Give


class Offers:
    """What can be handed out in the place of a copy: for that very tensor, not written to since, and once."""

    def __init__(self) -> None:
        self._offers: dict[int, _Offer] = {}
        self._in_vain = 0
        self.given = 0

    @property
    def welcome(self) -> bool:
        """Whether the program takes what it is offered."""
        return self._in_vain < _MOST_IN_VAIN

    def add(self, tensor: Any, device: Any, give: Give) -> None:
        """`give` hands over the copy of `tensor` on `device`. A tensor whose writes are not counted gets none."""
        if tensor.is_inference() or tensor.requires_grad:
            return
        place = id(tensor)

        def gone(reference: Any) -> None:
            offer = self._offers.get(place)
            if offer is not None and offer.tensor is reference:
                del self._offers[place]

        self._in_vain += 1
        self._offers[place] = _Offer(weakref.ref(tensor, gone), tensor._version, device, give)

    def moved(self, tensor: Any, call: Callable[[Any], Any], device: Any) -> Any:
        """A subscriber of the seam *tensor moved*."""
        offer = self._offers.get(id(tensor))
        if offer is None or offer.device != device or offer.tensor() is not tensor:
            return call(device)
        del self._offers[id(tensor)]  # the program's next copy must be another tensor
        if tensor._version != offer.version or _recording_a_graph(device):
            return call(device)
        self._in_vain = 0
        self.given += 1
        return offer.give()

    def clear(self) -> None:
        """Of those that are let go of, none counts as in vain."""
        self._in_vain = max(0, self._in_vain - len(self._offers))
        self._offers.clear()


def _recording_a_graph(device: Any) -> bool:
    """What is waited for then must be recorded too."""
    import torch

    return bool(device.type == "cuda" and torch.cuda.is_current_stream_capturing())


class Copier:
    """Starts copies to a GPU on a stream of its own, so that they run beside the computing."""

    needs_pinned = True  # a copy from other memory holds up the program until it is done

    def __init__(self, device: Any) -> None:
        import torch

        self.device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, tensor: Any) -> Give:
        """Returns what hands the copy over to the stream that the program works on.

        Both memories are taken anew from torch's caching allocators, which give them to nobody else before
        the streams that were told to them are done.
        """
        import torch

        with torch.cuda.stream(self._stream):
            copy = torch.empty_like(tensor, device=self.device)
            copy.copy_(tensor, non_blocking=True)
            arrived = self._stream.record_event()

        def give() -> Any:
            # As after a copy of the program's own, which blocks: the batch may be written to again. Begun a step ago,
            # the copy has arrived in all likelihood.
            arrived.synchronize()
            current = torch.cuda.current_stream(self.device)
            current.wait_event(arrived)
            copy.record_stream(current)
            return copy

        return give


def device_of(parameter: Any) -> Any:
    """The GPU that a parameter lies on; None where it lies on none."""
    return parameter.device if parameter is not None and parameter.device.type == "cuda" else None


def tensors_in(batch: Any) -> Iterator[Any]:
    """All plain tensors of a batch, in their order."""
    import torch

    if type(batch) is torch.Tensor:
        yield batch
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            yield from tensors_in(each)
    elif isinstance(batch, dict):
        yield from tensors_in(list(batch.values()))


class Trained:
    """Remembers where the program trains: the device of the parameters of the latest optimizer."""

    def __init__(self) -> None:
        self._parameter: Any = lambda: None

    def made(self, optimizer: Any, models: list[Any]) -> None:
        """A subscriber of the seam *optimizer made*."""
        for parameter in parameters_of(optimizer)[:1]:
            self._parameter = weakref.ref(parameter)

    @property
    def device(self) -> Any:
        return device_of(self._parameter())


class OffersHandle(Handle):
    """Of a technique that answers the program's `.to(device)` by what it has there. While it is off, it offers nothing.

    Args:
        without_gpu: called where this PyTorch knows no GPU.
        on: what else switching it on takes.
    """

    def __init__(
        self, seams: Seams, without_gpu: Callable[[], None] = lambda: None, on: Callable[[], None] | None = None
    ) -> None:
        self.offers = Offers()
        self._seams = seams
        self._trained = Trained()
        self._without_gpu = without_gpu
        super().__init__(seams, on, self.offers.clear)
        seams.framework_arrived.subscribe(self._arrives)
        seams.loader_opens.subscribe(self.opens, always=True)
        seams.on_undo(self.undo)

    def _arrives(self) -> None:
        import torch

        if not torch.version.cuda and not torch.version.hip:
            return self._without_gpu()
        self._seams.optimizer_made.subscribe(self._trained.made)
        self._seams.tensor_moved.subscribe(self.offers.moved)

    def opens(self, loader: Any, call: Callable[[], Any]) -> Any:
        """A loader is opened: see the seam `loader_opens`."""
        raise NotImplementedError

    def undo(self) -> None:
        """Let go of all that was made."""
        raise NotImplementedError
