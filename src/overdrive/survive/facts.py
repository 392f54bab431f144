"""What a program holds in Python beside its framework's own: a run that came here another way shows by it.

Its variables and those of its objects: numbers, texts, arrays, generators, and the shape of what holds them. Of
libraries' objects only the history of losses, and tensors that are there, are looked at.
"""

from __future__ import annotations

import hashlib
import io
import random
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from overdrive.survive.names import attributes, content_of, of_frame, of_function, roots
from overdrive.survive.ours import belongs_to_library, is_redirected

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OPAQUE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.GeneratorType)
_FUNCTIONS = (types.FunctionType, types.MethodType)
_LISTS = (list, tuple, deque)
_OF_KERAS = {"History": ("history", "epoch")}  # of Keras's own objects, what the program asks for


def facts(frame: Any) -> list[str]:
    """A line each. `frame`: the innermost call."""
    found: list[str] = []
    kept: dict[int, Any] = {}
    waiting = list(reversed(list(roots(frame))))
    while waiting:
        path, thing = waiting.pop()
        if type(thing) in _PLAIN:
            found.append(f"{path}: {_short(repr(thing))}")
        elif id(thing) not in kept:
            kept[id(thing)] = thing
            if text := _told(thing):
                found.append(f"{path}: {text}")
            else:
                waiting += reversed(list(_within(path, thing)))
    return found


def difference(then: list[str], now: list[str]) -> str:
    for one, other in zip(then, now, strict=False):
        if one != other:
            return f"{one} at the snapshot, {other} now"
    return "" if len(then) == len(now) else f"{len(then)} things at the snapshot, {len(now)} now"


def _told(thing: Any) -> str:
    """ "" where it is to be looked into."""
    if type(thing).__name__ == "EagerTensor":
        from overdrive.seams.keras.internals import array_of

        thing = np.asarray(array_of(thing)) if thing.dtype.is_numpy_compatible else np.zeros(0)
    if isinstance(thing, (np.ndarray, np.generic)) and not thing.dtype.hasobject:
        return f"{thing.dtype} {thing.shape} {_digest(thing.tobytes())}"
    if isinstance(thing, random.Random):
        return _digest(repr(thing.getstate()).encode())
    if isinstance(thing, np.random.Generator):
        return _digest(repr(thing.bit_generator.state).encode())
    if isinstance(thing, np.random.RandomState):
        return _digest(repr(thing.get_state(legacy=False)).encode())
    if isinstance(thing, (io.BytesIO, io.StringIO)) and not thing.closed:
        value = thing.getvalue()
        return _digest(value if isinstance(value, bytes) else value.encode(errors="surrogatepass"))
    return ""


def _within(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    if isinstance(thing, _OPAQUE) or (isinstance(thing, _FUNCTIONS) and is_redirected(thing)):
        return
    if isinstance(thing, types.FrameType):
        yield from ((name, value) for name, value, own in of_frame(path, thing) if own)
    elif isinstance(thing, types.FunctionType):
        if not belongs_to_library(thing.__module__ or ""):
            yield from ((name, value) for name, value, _ in of_function(path, thing, True))
    elif isinstance(thing, types.MethodType):
        yield f"{path}.__self__", thing.__self__
    elif isinstance(thing, types.CellType):
        yield from ((path, value) for value in content_of(thing))
    elif isinstance(thing, dict):
        for number, (key, value) in enumerate(list(thing.items())):
            yield f"{path}[{key!r}]" if type(key) in _PLAIN else f"{path}[key {number}]", value
    elif isinstance(thing, _LISTS):
        yield f"{path}.length", len(thing)
        yield from ((f"{path}[{number}]", value) for number, value in enumerate(list(thing)))
    elif isinstance(thing, (set, frozenset)):
        yield f"{path}.length", len(thing)
        if all(type(each) in _PLAIN for each in thing):
            yield path, repr(sorted(map(repr, thing)))
    elif isinstance(thing, type):
        if not belongs_to_library(thing.__module__) and thing.__module__ != "builtins":
            yield from ((f"{path}.{name}", value) for name, value in attributes(thing))
    elif not belongs_to_library(kind.__module__):
        yield from ((f"{path}.{name}", value) for name, value in attributes(thing))
    elif kind.__name__ in _OF_KERAS and kind.__module__.startswith("keras"):
        yield from ((f"{path}.{name}", getattr(thing, name, None)) for name in _OF_KERAS[kind.__name__])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _short(text: str) -> str:
    return text if len(text) <= 40 else _digest(text.encode(errors="replace"))
