"""Arguments and results of a call as a flat list of what is in them: tuples, lists, dicts, dataclasses, the masks that
tensors of Keras carry, and attributes of objects that a call has made (a cache of keys and values, a distribution)."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.seams.keras.internals import mask_of, masked

Build = Callable[[Sequence[Any]], Any]  # makes the whole of such leaves


_HEAP = 1 << 9  # of a class's flags: it was made while Python ran
_NO_SLOTS = {"__dict__", "__weakref__"}
_NO_OBJECTS = (
    torch.Tensor,
    torch.nn.Module,
    type,
    dict,
    list,
    tuple,
    set,
    frozenset,
    str,
    bytes,
    int,
    float,
    enum.Enum,
)


def flatten(thing: Any, objects: bool = False) -> tuple[list[Any], Build]:
    """The leaves, and what makes the same thing of others.

    Args: `objects`: attributes of other objects are leaves, too; others are put into these objects themselves, which
        whoever has made them may hold.
    """
    return _flatten(thing, {} if objects else None)


def _flatten(thing: Any, seen: dict[int, Any] | None) -> tuple[list[Any], Build]:
    """`seen`: the objects that were looked into so far; None where none are."""
    found, spec = tree_flatten(thing, None if seen is None else _is_shape)
    leaves: list[Any] = []
    builds: list[tuple[int, Build | None]] = []
    for each in found:
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            inner, build = _fields(each, seen)
        elif isinstance(each, torch.Tensor) and (mask := mask_of(each)) is not None:
            inner, build = [each, mask], _with_mask
        elif seen is not None and _is_object(each):
            inner, build = _attributes(each, seen)
        else:
            inner, build = [each], None
        leaves += inner
        builds.append((len(inner), build))
    if all(build is None for _, build in builds):
        return leaves, lambda others: tree_unflatten(list(others), spec)

    def together(others: Sequence[Any]) -> Any:
        made, place = [], 0
        for count, build in builds:
            own = others[place : place + count]
            made.append(own[0] if build is None else build(own))
            place += count
        return tree_unflatten(made, spec)

    return leaves, together


def _with_mask(leaves: Sequence[Any]) -> Any:
    tensor, mask = leaves
    return masked(tensor, mask)


def _is_shape(thing: Any) -> bool:
    """Of a part it is another one, as a whole: which number of it, its place alone tells."""
    return isinstance(thing, torch.Size)


def _is_object(thing: Any) -> bool:
    """Of a class of Python's, all of which is in its attributes."""
    kind = type(thing)
    return (
        not isinstance(thing, _NO_OBJECTS)
        and not callable(thing)
        and isinstance(getattr(thing, "__dict__", None), dict)
        and all(each is object or _is_written_in_python(each) for each in kind.__mro__)
    )


def _is_written_in_python(kind: type) -> bool:
    slots = vars(kind).get("__slots__", ())
    return bool(kind.__flags__ & _HEAP) and not {*([slots] if isinstance(slots, str) else slots)} - _NO_SLOTS


def _attributes(thing: Any, seen: dict[int, Any]) -> tuple[list[Any], Build]:
    if id(thing) in seen:
        return [[*seen].index(id(thing))], lambda others: thing
    seen[id(thing)] = thing
    space = vars(thing)
    names = list(space)
    leaves, build = _flatten([space[name] for name in names], seen)
    held = [space[name] for name in names]

    def put(others: Sequence[Any]) -> Any:
        if any(one is not other for one, other in zip(leaves, others, strict=True)):
            for name, before, value in zip(names, held, build(others), strict=True):
                if not _same(before, value):
                    space[name] = value
        return thing

    return leaves, put


def _same(before: Any, now: Any) -> bool:
    """Whether a list, say, holds what it held: then it stays the one that it is."""
    if before is now:
        return True
    one, spec = tree_flatten(before)
    other, another = tree_flatten(now)
    return spec == another and all(a is b for a, b in zip(one, other, strict=True))


def _fields(thing: Any, seen: dict[int, Any] | None) -> tuple[list[Any], Build]:
    names = [each.name for each in dataclasses.fields(thing) if hasattr(thing, each.name)]
    leaves, build = _flatten([getattr(thing, name) for name in names], seen)

    def again(others: Sequence[Any]) -> Any:
        made = copy.copy(thing)
        for name, value in zip(names, build(others), strict=True):
            object.__setattr__(made, name, value)
        return made

    return leaves, again
