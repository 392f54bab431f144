"""Makes requests happen, in a thread of its own: each as soon as all ranks have made it, whatever their order.

Gradients so travel while the backward pass goes on, and what is ready at once travels together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch

from overdrive.ranks.horovod.errors import HorovodInternalError
from overdrive.ranks.horovod.requests import Ready, Request, ready
from overdrive.ranks.horovod.wire import Wire

_LINGER = 0.001  # seconds in which more requests come: Horovod's default cycle
# The same of ranks of one machine, until somebody waits: to exchange gradients beside the backward pass takes the cores
# that the pass is made on.
_LINGER_BY_MEMORY = 0.02
_PAUSE = 1e-4  # seconds until ranks tell each other again what they have asked for, where that was not the same
_FUSED = 64 << 20  # bytes that travel together: Horovod's default too
_TELLS = 1.0  # seconds that a request waits for other ranks before the monitor hears of it
_LAST = 5.0  # seconds for the thread to end
JOIN = "join"


class Coordinator:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._pending: dict[str, Request] = {}
        self._joined_at: dict[int, int] = {}  # of ranks that have joined, at which exchange
        self._exchanges = 0
        self._changed = threading.Condition()
        self._waiting = 0  # calls of `wait`
        self._over = False
        self._thread = threading.Thread(target=self._go, name="overdrive-horovod", daemon=True)
        if wire.size > 1:
            self._thread.start()

    def ask(self, request: Request) -> Request:
        """
        Raises:
            ValueError: one of that name is under way.
        """
        if request.tensor is not None and request.tensor.is_cuda:
            request.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            request.event.record()
        with self._changed:
            if request.name in self._pending:
                raise ValueError(f"{request.name} is asked for while another one is under way")
            self._pending[request.name] = request
            self._changed.notify()
        if self._wire.size == 1:
            self._act([{"pending": [request.told()], "joined": request.kind == JOIN}])
        return request

    def wait(self, request: Request) -> Any:
        """Its result.

        Raises:
            HorovodInternalError: ranks ask for different things under its name.
        """
        with self._changed:
            self._waiting += 1
            self._changed.notify()
        try:
            self._wait(request)
        finally:
            with self._changed:
                self._waiting -= 1
        if request.error:
            raise request.error
        return request.result

    def _wait(self, request: Request) -> None:
        monitor = self._wire.monitor
        told = False
        while not request.done.wait(_TELLS):
            if not request.matched and request.kind != JOIN and not told:
                monitor.waits(request.name, counted=False)
                told = True
        if told:
            monitor.goes_on()

    def stop(self) -> None:
        """Of this rank; what it has asked for is done first, where the others ask for it too."""
        for request in list(self._pending.values()):
            request.done.wait(_LAST)
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_LAST)
        if not self._thread.is_alive():
            self._wire.close()

    # -- the thread -----------------------------------------------------------------------------

    def _go(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._over:
                    self._changed.wait()
                if self._over:
                    return
                self._changed.wait_for(lambda: self._waiting or self._over, self._linger())
                mine = [each.told() for each in self._pending.values()]
            told = self._wire.exchange({"pending": mine, "joined": JOIN in (each[0] for each in mine)})
            self._exchanges += 1
            try:
                if not self._act(told):
                    time.sleep(_PAUSE)
            except Exception as error:  # of memory, say: who waits is to hear of it
                self._fail(error)

    def _linger(self) -> float:
        on_gpu = any(each.event is not None for each in self._pending.values())
        return _LINGER_BY_MEMORY if self._wire.by_memory and not on_gpu else _LINGER

    def _fail(self, error: Exception) -> None:
        with self._changed:
            failed, self._pending = list(self._pending.values()), {}
        for request in failed:
            request.finish(error=error)

    def _act(self, told: Sequence[Any]) -> bool:
        """Whether all ranks had asked for something."""
        for rank, each in enumerate(told):
            if each["joined"]:
                self._joined_at.setdefault(rank, self._exchanges)
        if len(self._joined_at) == len(told):
            last = max(self._joined_at, key=lambda rank: (self._joined_at[rank], rank))
            self._joined_at = {}
            self._take(JOIN).finish(last)  # type: ignore[union-attr]
            return True
        found, sound = ready(told), []
        for each in found:
            if why := each.wrong():
                if request := self._take(each.name):
                    request.finish(error=HorovodInternalError(f"{each.name}: {why}"))
            else:
                sound.append(each)
        for kind, group in groupby(sound, key=_together):
            if kind is None:
                for each in group:
                    self._make(each)
            else:
                for part in _parts(list(group)):
                    self._reduce(part)
        return bool(found)

    def _take(self, name: str) -> Request | None:
        with self._changed:
            request = self._pending.pop(name, None)
        if request:
            request.matched = True
            if request.event:
                request.event.synchronize()
        return request

    def _reduce(self, group: Sequence[Ready]) -> None:
        """All of one type and operation. Who has joined sends what changes nothing: zeros, as Horovod does."""
        requests = [self._take(each.name) for each in group]
        with _told(requests):
            flats = [
                _zeros(*each.tensor) if request is None or request.tensor is None else _flat(request.tensor)
                for each, request in zip(group, requests, strict=True)
            ]
            whole = torch.cat(flats) if len(flats) > 1 else flats[0].clone()
            settings = group[0].settings
            average = settings["op"] == "average"
            _scale(whole, settings["before"])
            self._wire.reduce_(whole, "sum" if average else settings["op"])
            _scale(whole, settings["after"] / self._wire.size if average else settings["after"])
            parts = whole.split([each.numel() for each in flats])  # type: ignore[no-untyped-call]
            for request, part in zip(requests, parts, strict=True):
                if request and request.tensor is not None:
                    with _writing(request.tensor) as place:
                        place.copy_(part.view(place.shape))
                    request.finish(request.tensor)

    def _make(self, each: Ready) -> None:
        request = self._take(each.name)
        if request is None:
            raise AssertionError(f"{each.name} was not asked for here")
        tensor, wire = request.tensor, self._wire
        made: Any = None  # of a barrier: that all have asked for it is all
        with _told([request]):
            if tensor is not None and each.kind == "allgather":
                made = wire.gather(tensor.detach(), each.rows())
            elif tensor is not None and each.kind == "broadcast":
                with _writing(tensor) as place:
                    wire.broadcast_(place, request.settings["root"])
                made = tensor
            elif tensor is not None:
                theirs = each.splits_to(wire.rank)
                made = wire.deal(tensor.detach(), request.splits, theirs), theirs
            request.finish(made)


@contextmanager
def _told(requests: Sequence[Request | None]) -> Iterator[None]:
    """Who waits for these, which are pending no longer, hears of an error within."""
    try:
        yield
    except Exception as error:
        for each in requests:
            if each is not None and not each.done.is_set():
                each.finish(error=error)
        raise


@contextmanager
def _writing(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """One that was made in inference mode is written to in that mode alone, which each thread has for itself."""
    with torch.inference_mode(tensor.is_inference()):
        yield tensor.detach()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)


def _together(each: Ready) -> Any:
    """What is reduced at once has this in common; None for what goes alone."""
    return (each.settings, each.tensor[:2]) if each.kind == "allreduce" else None


def _parts(group: list[Ready]) -> list[list[Ready]]:
    """In parts of at most so many bytes, or of one."""
    parts: list[list[Ready]] = []
    size = 0
    for each in group:
        kind, _, shape = each.tensor
        own = torch.Size(shape).numel() * _type(kind).itemsize
        if not parts or size + own > _FUSED:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += own
    return parts


def _type(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))  # type: ignore[no-any-return]


def _zeros(kind: str, device: str, shape: Sequence[int]) -> torch.Tensor:
    return torch.zeros(torch.Size(shape).numel(), dtype=_type(kind), device=device)


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Whole numbers are cut off, as Horovod does."""
    if factor == 1.0:
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).trunc())
