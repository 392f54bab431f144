"""Seams *scalar read*: the program's own `tensor.item()`, `float(tensor)` and `int(tensor)`; and *value read*: all else
that it may decide by, as `if loss > 1`.

`f"{loss:.3f}"` is a scalar that is read as well: torch asks `item` for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from overdrive.core.in_place import in_place_of
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from
from overdrive.seams.points import Around
from overdrive.seams.torch.asked import BOTH
from overdrive.seams.torch.overriding import NOBODY, overridden
from overdrive.seams.torch.scripted import scripted_alike

_VALUES = ("__bool__", "__index__", "tolist", "numpy", "__repr__")


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.scalar_read.wanted:
        for name in ("item", "__float__", "__int__"):
            patches.replace(torch.Tensor, name, _seen(hub, getattr(torch.Tensor, name)))
    removers: list[Callable[[], None]] = []
    for holder, names in ((torch.Tensor, (*_VALUES, *BOTH)), (torch, BOTH)):
        for name in names if hub.value_read.wanted else ():
            plain = getattr(holder, name)
            read = _read(hub.value_read, name, plain, holder is torch)
            patches.replace(holder, name, read)
            if name in BOTH:
                removers.append(scripted_alike(read, plain))
    return removers


def _seen(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    kind = {"__float__": float, "__int__": int}.get(plain.__name__)

    @functools.wraps(plain)
    def read(self: torch.Tensor) -> Any:
        if torch.compiler.is_compiling():
            return plain(self)
        call = plain
        if self.requires_grad or self.numel() != 1:  # torch warns of the one, and refuses the other
            call = called_from(sys._getframe(1), plain)
        if not hub.scalar_read.subscribers or self.numel() != 1:
            return call(self)
        number = hub.scalar_read.run(self, lambda: call(self))
        return number if kind is None else kind(number)

    return read


def _read(point: Around, name: str, plain: Callable[..., Any], function: bool) -> Callable[..., Any]:
    """`function`: it is no method."""

    @in_place_of(plain)
    def read(*args: Any, **kwargs: Any) -> Any:
        if function and (answer := overridden(read, args, kwargs)) is not NOBODY:
            return answer
        if not point.subscribers or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        return point.run(name, functools.partial(plain, *args, **kwargs))

    return read
