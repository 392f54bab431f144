"""What a program holds in Python beside its framework's own: a run that came here another way shows by it.

Its variables and those of its objects: numbers, texts, arrays, generators, and the shape of what holds them. Of
libraries' objects only the history of losses, and tensors that are there, are looked at.
"""

from __future__ import annotations

import io
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from overdrive.survive.names import attributes
from overdrive.survive.ours import belongs_to_library
from overdrive.survive.program_walk import (
    OF_CODE,
    PLAIN,
    SEQUENCES,
    Child,
    ProgramWalk,
    hash_of,
    hash_of_buffer,
    in_code,
)

_OF_KERAS = {"History": ("history", "epoch")}  # of Keras's own objects, what the program asks for


def facts(frame: Any) -> list[str]:
    """A line each. `frame`: the innermost call."""
    walk = ProgramWalk()
    walk.from_roots(frame, lambda path, thing, own: _look(walk, path, thing))
    return [f"{path}: {text}" for path, text in walk.facts]


def _look(walk: ProgramWalk, path: str, thing: Any) -> Iterator[Child]:
    if text := _told(thing):
        walk.note(path, text)
    else:
        yield from ((name, value, True) for name, value in _within(path, thing))


def _told(thing: Any) -> str:
    """ "" where it is to be looked into."""
    if type(thing).__name__ == "EagerTensor":
        from overdrive.seams.keras.internals import array_of

        thing = np.asarray(array_of(thing)) if thing.dtype.is_numpy_compatible else np.zeros(0)
    if isinstance(thing, (np.ndarray, np.generic)) and not thing.dtype.hasobject:
        return f"{thing.dtype} {thing.shape} {hash_of(thing.tobytes())}"
    if isinstance(thing, random.Random):
        return hash_of(repr(thing.getstate()).encode())
    if isinstance(thing, np.random.Generator):
        return hash_of(repr(thing.bit_generator.state).encode())
    if isinstance(thing, np.random.RandomState):
        return hash_of(repr(thing.get_state(legacy=False)).encode())
    if isinstance(thing, (io.BytesIO, io.StringIO)) and not thing.closed:
        return hash_of_buffer(thing)
    return ""


def _within(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Only what is the program's own."""
    kind = type(thing)
    if isinstance(thing, OF_CODE):
        yield from ((name, value) for name, value, own in in_code(path, thing, True) if own)
    elif isinstance(thing, types.MethodType):
        yield f"{path}.__self__", thing.__self__
    elif isinstance(thing, dict):
        for number, (key, value) in enumerate(list(thing.items())):
            yield f"{path}[{key!r}]" if type(key) in PLAIN else f"{path}[key {number}]", value
    elif isinstance(thing, SEQUENCES):
        yield f"{path}.length", len(thing)
        yield from ((f"{path}[{number}]", value) for number, value in enumerate(list(thing)))
    elif isinstance(thing, (set, frozenset)):
        yield f"{path}.length", len(thing)
        if all(type(each) in PLAIN for each in thing):
            yield path, repr(sorted(map(repr, thing)))
    elif isinstance(thing, type) or not belongs_to_library(kind.__module__):
        yield from ((f"{path}.{name}", value) for name, value in attributes(thing))
    elif kind.__name__ in _OF_KERAS and kind.__module__.startswith("keras"):
        yield from ((f"{path}.{name}", getattr(thing, name, None)) for name in _OF_KERAS[kind.__name__])
