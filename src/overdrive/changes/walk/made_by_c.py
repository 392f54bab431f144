"""Objects that C made, by what they hold: what a partial calls, an error's cause, what a proxy is a view of."""

from __future__ import annotations

import functools
import gc
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from overdrive.changes.state import fields_of
from overdrive.changes.walk.walk import Walk


def visit_error(walk: Walk, error: BaseException) -> None:
    """Where it was raised is the state of functions that have ended: that it was is what counts of it."""
    walk.emit("error")
    walk.watch.fields(error)
    for part in fields_of(error):
        if not isinstance(part, types.TracebackType):
            walk.visit(part)


def _with_space(walk: Walk, thing: Any, *parts: Any) -> None:
    """Parts of what has attributes of its own besides."""
    walk.each(type(thing).__name__, *parts, thing.__dict__)
    walk.watch.fields(thing)


def _property(walk: Walk, thing: property) -> None:
    walk.each("property", thing.fget, thing.fset, thing.fdel)
    walk.watch.fields(thing)


def _ufunc(walk: Walk, thing: np.ufunc) -> None:
    """Of numpy's own, or of a function of Python's that it refers to."""
    walk.emit("builtin", thing.__name__)
    walk.each(*gc.get_referents(thing))


def _bytearray(walk: Walk, thing: bytearray) -> None:
    walk.emit("bytearray", bytes(thing))
    walk.watch.items(thing)


def _lock(walk: Walk, thing: Any) -> None:
    """Nobody's data, but whether it is held; and another process would need one of its own."""
    walk.hide("it holds a lock", here=False)
    walk.state(lambda: _held_by(thing))


def _held_by(lock: Any) -> str:
    """`<locked _thread.RLock object owner=... count=1 at 0x...>` without where it lies."""
    return repr(lock).partition(" at 0x")[0]


OF_C: dict[type, Callable[[Any, Any], None]] = {
    staticmethod: lambda walk, thing: _with_space(walk, thing, thing.__func__),
    classmethod: lambda walk, thing: _with_space(walk, thing, thing.__func__),
    functools.partial: lambda walk, thing: _with_space(walk, thing, thing.func, thing.args, thing.keywords),
    property: _property,
    # What it is a view of: a copy would not change with it.
    types.MappingProxyType: lambda walk, thing: walk.each("proxy", *gc.get_referents(thing)),
    type(NotImplemented): lambda walk, thing: walk.emit("not implemented"),
    type(...): lambda walk, thing: walk.emit("ellipsis"),
    bytearray: _bytearray,
    type(threading.Lock()): _lock,
    type(threading.RLock()): _lock,
    np.ufunc: _ufunc,
}
for _kind in (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType),
    types.ClassMethodDescriptorType,
):
    OF_C[_kind] = lambda walk, thing: walk.emit("builtin", repr(getattr(thing, "__name__", thing)))
