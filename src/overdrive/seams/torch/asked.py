"""Seams *value asked* and *shape asked*: Python takes from a tensor what depends on the numbers in it.

`f"{loss:.3f}"`, `print(loss)`, `loss > 1` in a condition, `np.asarray(tensor)` and `x in tensor` all come here: PyTorch
asks one of these methods for them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from overdrive.core.in_place import in_place_of
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from
from overdrive.seams.points import Around
from overdrive.seams.slots import derived_from, staying_no_sequences
from overdrive.seams.torch.overriding import NOBODY, overridden
from overdrive.seams.torch.scripted import scripted_alike

_ALONE = ("item", "__float__", "__int__", "__bool__", "__index__", "__complex__", "tolist")  # take nothing besides
_METHODS = ("numpy", "__repr__")
BOTH = ("equal", "allclose", "is_nonzero")  # as a method and as a function
_SHAPED = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "repeat_interleave")

_UNTAGGED = ("torchvision.nms",)  # of libraries, whose shapes depend on values without their saying so


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    removers: list[Callable[[], None]] = []
    if hub.value_asked.wanted:
        for name in _ALONE:
            patches.replace(torch.Tensor, name, _asked_alone(hub.value_asked, name, getattr(torch.Tensor, name)))
        for name in _METHODS:
            patches.replace(torch.Tensor, name, _asked_of(hub.value_asked, name, getattr(torch.Tensor, name)))
        removers += _replace_both(hub.value_asked, patches, BOTH)
    if hub.choice_set.wanted:
        patches.replace(torch.Tensor, "__setitem__", _set(hub.choice_set, torch.Tensor.__setitem__))
    if hub.shape_asked.wanted:
        removers += _replace_both(hub.shape_asked, patches, _SHAPED)
        with staying_no_sequences(torch.Tensor):
            patches.replace(torch.Tensor, "__getitem__", _indexed(hub, torch.Tensor.__getitem__))
        patches.replace(torch.Tensor, "__init_subclass__", derived_from(torch.Tensor))
        packet = type(torch.ops.aten.nonzero)
        patches.replace(packet, "__call__", _called(hub.shape_asked, packet.__call__))
        where = torch.where

        @in_place_of(where)
        def places(*args: Any, **kwargs: Any) -> Any:
            if (answer := overridden(places, args, kwargs)) is not NOBODY:
                return answer
            if len(args) != 1 or kwargs:
                return where(*args, **kwargs)
            return hub.shape_asked.run(("where", args[0]), functools.partial(where, *args))

        encode = functional.one_hot

        @in_place_of(encode)
        def one_hot(*args: Any, **kwargs: Any) -> Any:  # documented as `tensor`, called `input`
            if torch.compiler.is_compiling():
                return encode(*args, **kwargs)
            if (answer := overridden(one_hot, args, kwargs)) is not NOBODY:
                return answer
            if (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) != -1:
                return encode(*args, **kwargs)
            tensor = args[0] if args else kwargs.get("input")
            return hub.shape_asked.run(("one_hot", tensor), functools.partial(encode, *args, **kwargs))

        for holder, name, seen, plain in ((torch, "where", places, where), (functional, "one_hot", one_hot, encode)):
            patches.replace(holder, name, seen)
            removers.append(scripted_alike(seen, plain))
    return removers


def _replace_both(point: Around, patches: Patches, names: tuple[str, ...]) -> list[Callable[[], None]]:
    removers: list[Callable[[], None]] = []
    for holder in (torch.Tensor, torch):
        for name in names:
            if plain := getattr(holder, name, None):
                seen = _asked(point, name, plain, holder is torch)
                patches.replace(holder, name, seen)
                removers.append(scripted_alike(seen, plain))
    return removers


def _asked_alone(point: Around, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """As `_asked`: while the point rests, a data set comes here several times for each of its samples."""

    @functools.wraps(plain)
    def asked(self: Any) -> Any:
        if point.rests or not point.subscribers or torch.compiler.is_compiling():
            return plain(self)
        # Of a number with a gradient PyTorch warns: of the line that asks.
        call = called_from(sys._getframe(1), plain) if self.requires_grad else plain
        return point.run((name, self), functools.partial(call, self))

    return asked


def _asked_of(point: Around, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Likewise of a method that may take something besides, which it mostly is not given: to hand on nothing is a third
    of what passing here takes."""

    @functools.wraps(plain)
    def asked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if point.rests or not point.subscribers or torch.compiler.is_compiling():
            return plain(self, *args, **kwargs) if args or kwargs else plain(self)
        return point.run((name, self), functools.partial(plain, self, *args, **kwargs))

    return asked


def _asked(point: Around, name: str, plain: Callable[..., Any], function: bool) -> Callable[..., Any]:
    """`function`: it is no method."""

    @in_place_of(plain)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if function and (answer := overridden(asked, args, kwargs)) is not NOBODY:
            return answer
        if point.rests or not point.subscribers or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        subject = args[0] if args else next(iter(kwargs.values()), None)
        return point.run((name, subject), functools.partial(plain, *args, **kwargs))

    return asked


def _indexed(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A choice by truth values has as many rows as are true."""
    point = hub.shape_asked

    @functools.wraps(plain)
    def __getitem__(self: Any, index: Any) -> Any:
        if point.rests or type(index) is int:
            return plain(self, index)
        if _chooses(index):
            return point.run(("__getitem__", self), functools.partial(plain, self, index))
        return plain(self, index)

    return __getitem__


def _called(point: Around, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Operators of libraries, which are called by `torch.ops`."""

    @functools.wraps(plain)
    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if point.rests or torch.compiler.is_compiling() or not _is_shaped_by_values(self):
            return plain(self, *args, **kwargs)
        subject = args[0] if args else next(iter(kwargs.values()), None)
        return point.run((str(self), subject), functools.partial(plain, self, *args, **kwargs))

    return __call__


@functools.cache
def _is_shaped_by_values(packet: Any) -> bool:
    if str(packet) in _UNTAGGED:
        return True
    return any(torch.Tag.dynamic_output_shape in getattr(packet, each).tags for each in packet.overloads())


def _set(point: Around, plain: Callable[..., Any]) -> Callable[..., Any]:
    """What is set to a choice has as many rows."""

    @functools.wraps(plain)
    def __setitem__(self: Any, index: Any, value: Any) -> None:
        if _chooses(index):
            point.run(self, functools.partial(plain, self, index), value)
        else:
            plain(self, index, value)

    return __setitem__


def _chooses(index: Any) -> bool:
    truth = (torch.bool, torch.uint8)
    for each in index if type(index) is tuple else (index,):
        if isinstance(each, torch.Tensor) and each.dtype in truth:
            return not torch.compiler.is_compiling()
    return False
