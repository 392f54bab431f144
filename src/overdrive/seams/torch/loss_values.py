"""What losses are, known without waiting for a device.

A loss on the CPU is a number already: reading it costs 2 us. One on a GPU is copied into main memory beside the
program, and looked at when a later loss comes: the copy is there when the memory no longer holds what was put there
before it. So no call of CUDA asks for it, which a recording of a graph in another thread would not outlive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

import torch

from overdrive.seams.torch.internals import count_of_function_modes, unseen_by_modes
from overdrive.seams.torch.tracing import traced

_PLACES = 64  # losses of a GPU that may be under way at once; those that come while all are taken are not looked at
_SHORT, _INT, _LONG = torch.int16, torch.int32, torch.int64
_BITS = {torch.float32: _INT, torch.float64: _LONG, torch.bfloat16: _SHORT, torch.float16: _SHORT}
_NOT_THERE = {_INT: 0x7FABCDEF, _LONG: 0x7FFABCDEF1234567, _SHORT: 0x7FEB}  # NaNs that no sum gives


@dataclass
class _Copies:
    """Of losses of one type, in the order in which they were sent."""

    places: tuple[torch.Tensor, ...]  # for a number each, in main memory that a GPU writes to
    bits: Any  # the same memory, as an array that is read past PyTorch
    empty: int  # what is there until a copy has come
    sent: list[tuple[int, int]]  # place and step
    place: int = 0


class LossValues:
    def __init__(self, every: int, heard: Callable[[int, float], None] | None = None) -> None:
        """
        Args:
            every: of losses on a GPU one in so many is copied, which costs some 10 us.
            heard: is told the step and the value of each that is finite.
        """
        self._item = torch.Tensor.item  # as it is before any seam puts another in its place
        self._modes = count_of_function_modes()
        self._heard = heard
        self._every, self._count = every, 0
        self._copies: dict[torch.dtype, _Copies] = {}

    def noted(self, loss: Any, steps: Callable[[], int]) -> tuple[int, float] | None:
        """`loss` is sent backward. The first step known by now whose loss is not finite, with its value.

        Tensors of more than one number, and what the program computes under a transform or a mode of its own, are not
        looked at.

        Args:
            steps: complete ones so far.
        """
        if type(loss) is not torch.Tensor or traced():
            return None
        if self._modes():
            with unseen_by_modes():
                return self._looked_at(loss, steps)
        return self._looked_at(loss, steps)

    def _looked_at(self, loss: torch.Tensor, steps: Callable[[], int]) -> tuple[int, float] | None:
        if loss.numel() != 1:
            return None
        if loss.is_cpu:
            value = self._item(loss)
            quiet = self._heard is None and isfinite(value)  # as in almost every step
            return None if quiet else self._told(value, loss.dtype, steps() + 1)
        return self._noted_on_gpu(loss, steps() + 1) if loss.is_cuda else None

    def _noted_on_gpu(self, loss: torch.Tensor, step: int) -> tuple[int, float] | None:
        found = self._arrived()
        self._count += 1
        if found or self._count % self._every or loss.dtype not in _BITS or torch.cuda.is_current_stream_capturing():
            return found
        copies = self._copies.get(loss.dtype) or self._make(loss.dtype)
        if len(copies.sent) < _PLACES:
            copies.bits[copies.place] = copies.empty
            copies.places[copies.place].copy_(loss.detach().reshape(()), non_blocking=True)
            copies.sent.append((copies.place, step))
            copies.place = (copies.place + 1) % _PLACES
        return None

    def _make(self, kind: torch.dtype) -> _Copies:
        values = torch.empty(_PLACES, dtype=kind, device="cpu", pin_memory=True)
        bits = _BITS[kind]
        self._copies[kind] = _Copies(values.unbind(), values.view(bits).numpy(), _NOT_THERE[bits], [])
        return self._copies[kind]

    def _arrived(self) -> tuple[int, float] | None:
        for kind, copies in self._copies.items():
            while copies.sent and (bits := int(copies.bits[copies.sent[0][0]])) != copies.empty:
                _, step = copies.sent.pop(0)
                value = self._item(torch.tensor(bits, dtype=_BITS[kind], device="cpu").view(kind))
                if found := self._told(value, kind, step):
                    return found
        return None

    def _told(self, value: Any, kind: torch.dtype, step: int) -> tuple[int, float] | None:
        """In 16 bits infinity is not lost: so overflows what a `GradScaler` has scaled, which it expects. A loss that
        is really lost is not a number one step later."""
        if isfinite(value):
            if self._heard:
                self._heard(step, value)
            return None
        return None if kind is torch.float16 and not isnan(value) else (step, value)
