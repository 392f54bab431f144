"""What modules were when a technique decided something about them: whether they are so still, and a way back.

Seen: attributes, containers, hooks, classes, globals and closures that their code refers to, small arrays, generators.
Not seen: what parameters, buffers and other tensors hold (see `contents`), state of libraries' own, the world outside.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch

from overdrive.changes.generators import frozen, set_state, state_of
from overdrive.changes.watch import Watch
from overdrive.model_state.reach import Reach
from overdrive.seams.torch.hooks import global_hooks, made_in_each_call

_MOST_RENEWALS = 3  # a model that sets such numbers in each call costs no more than a comparison


class State:
    """Of these modules and all that their calls may read or change of Python's, as it is now."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self.reach = Reach(modules)
        self.reach.containers += global_hooks()
        self._saved = _Held(self.reach)
        # Nearly all are empty (those for hooks): that they still are takes 10 ns each.
        self._empty = [each for each in self.reach.containers if type(each) in _BUILT_IN and not each]
        self.watch_anew()
        self._renewals = 0

    def changed(self) -> bool:
        """Whether anything was set to something else since. Some 10 us, and 1 us for each module."""
        if not self._touched():
            return False
        if self.change():
            return True
        if self._renewals < _MOST_RENEWALS:  # what was set to an equal number is not to be looked into each time
            self._renewals += 1
            self.watch_anew()
        return False

    def change(self) -> str:
        """The first that was, in words; a number that was set to an equal number was not."""
        return self._saved.difference(_Held(self.reach))

    def put_back(self) -> None:
        self._saved.put()

    def watch_anew(self) -> None:
        """After much was put back, say, which is a change, too: each look would go into it."""
        self._watch = _watching(self.reach, {id(each) for each in self._empty})

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """For the length of this; afterwards all is as it is now, whatever happened in between."""
        now = _Held(self.reach) if self._touched() else self._saved
        if now is not self._saved:
            self._saved.put()
        try:
            yield
        finally:
            if now is not self._saved or self._touched():
                now.put()

    def _touched(self) -> bool:
        return any(self._empty) or self._watch.changed()


def _watching(reach: Reach, empty: set[int]) -> Watch:
    watch = Watch()
    for thing, space in reach.spaces:
        watch.space(thing, space)
    for each in reach.containers:
        if id(each) in empty:
            continue
        if isinstance(each, collections.deque):
            watch.digest(each, lambda each=each: repr([id(item) for item in each]))  # type: ignore[misc]
        else:
            watch.items(each)
    for kind in reach.classes:
        watch.of_class(kind)
        for name in vars(kind):
            watch.name(vars(kind), name)
    for thing, name in reach.slots:
        watch.slot(thing, name)
    for space, name in reach.names:
        watch.name(space, name)
    for cell in reach.cells:
        watch.cell(cell)
    for array in reach.arrays:
        watch.array(array)
    for each in reach.generators:
        watch.digest(each, lambda each=each: repr(frozen(state_of(each))))  # type: ignore[misc]
    watch.hold()
    watch.seal()
    return watch


class _Held:
    """What all these held at one moment."""

    def __init__(self, reach: Reach) -> None:
        self._kinds = [(thing, type(thing)) for thing, _ in reach.spaces]
        self._dicts = [(space, dict(space), thing) for thing, space in reach.spaces]
        self._lists: list[tuple[Any, list[Any]]] = []
        for each in reach.containers:
            if isinstance(each, dict):
                self._dicts.append((each, dict(each), each))
            else:
                self._lists.append((each, list(each)))
        self._names = [(space, name, space.get(name, _ABSENT)) for space, name in reach.names]
        self._classes = [(kind, dict(vars(kind))) for kind in reach.classes]
        self._slots = [(thing, name, getattr(thing, name, _ABSENT)) for thing, name in reach.slots]
        self._cells = [(cell, cell.cell_contents) for cell in reach.cells]
        self._arrays = [(array, array.copy()) for array in reach.arrays]
        self._generators = [(each, state_of(each)) for each in reach.generators]

    def put(self) -> None:
        for thing, kind in self._kinds:
            if type(thing) is not kind:
                object.__setattr__(thing, "__class__", kind)
        for space, held, _ in self._dicts:
            if not _same(space, held):
                base: Any = collections.OrderedDict if isinstance(space, collections.OrderedDict) else dict
                base.clear(space)
                base.update(space, held)
        for container, items in self._lists:
            if not identical(list(container), items):
                _fill(container, items)
        for space, name, value in self._names:
            if value is _ABSENT:
                space.pop(name, None)
            elif space.get(name, _ABSENT) is not value:
                space[name] = value
        for kind, attributes in self._classes:
            _set_attributes(kind, attributes)
        for thing, name, value in self._slots:
            if value is not _ABSENT and getattr(thing, name, _ABSENT) is not value:
                object.__setattr__(thing, name, value)
        for cell, value in self._cells:
            cell.cell_contents = value
        for array, values in self._arrays:
            if array.tobytes() != values.tobytes():
                array[...] = values
        for each, drawn in self._generators:
            if frozen(state_of(each)) != frozen(drawn):
                set_state(each, drawn)

    def difference(self, now: _Held) -> str:
        """The first, in words; empty where there is none."""
        for (_, held, owner), (_, other, _) in zip(self._dicts, now._dicts, strict=True):
            for name in (*held, *(other.keys() - held.keys())):
                if _alike(held.get(name, _ABSENT), other.get(name, _ABSENT)):
                    continue
                if name not in made_in_each_call(owner):
                    return f"{name!r} of a {type(owner).__name__}"
        for (container, items), (_, other_items) in zip(self._lists, now._lists, strict=True):
            if len(items) != len(other_items) or not all(map(_alike, items, other_items)):
                return f"a {type(container).__name__}{self._owner_of(container)}"
        for (space, name, value), (_, _, other_value) in zip(self._names, now._names, strict=True):
            if not _alike(value, other_value):
                return f"the global {name!r}" if "__name__" in space else f"its attribute {name!r}"
        for (each, drawn), (_, other_drawn) in zip(self._generators, now._generators, strict=True):
            if frozen(drawn) != frozen(other_drawn):
                return f"the state of a {type(each).__name__}"
        for mine, others in ((self._kinds, now._kinds), (self._slots, now._slots), (self._cells, now._cells)):
            if not all(_alike(one[-1], other[-1]) for one, other in zip(mine, others, strict=True)):
                return "an attribute, or a variable of a function"
        for (_, values), (_, other_values) in zip(self._arrays, now._arrays, strict=True):
            if values.shape != other_values.shape or values.tobytes() != other_values.tobytes():
                return "an array"
        if any(not _same(one[1], other[1]) for one, other in zip(self._classes, now._classes, strict=True)):
            return "an attribute of a class"
        return ""

    def _owner_of(self, container: Any) -> str:
        for _, held, owner in self._dicts:
            for name, value in held.items():
                if value is container:
                    return f", {name!r} of a {type(owner).__name__}"
        return ""


_ABSENT = object()
_BUILT_IN = frozenset((dict, list, set, collections.OrderedDict, collections.deque))
_PLAIN = (int, float, str, bytes, bool, tuple, torch.Size, torch.dtype, torch.device)


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and repr(one) == repr(other)


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return identical(list(one), list(other)) and identical(list(one.values()), list(other.values()))


def identical(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _fill(container: Any, items: list[Any]) -> None:
    if isinstance(container, (list, bytearray)):
        container[:] = items if isinstance(container, list) else bytes(items)
    elif isinstance(container, set):
        container.clear()
        container.update(items)
    else:
        container.clear()
        container.extend(items)


def _set_attributes(kind: type, attributes: dict[str, Any]) -> None:
    now = dict(vars(kind))
    for name in now.keys() - attributes.keys():
        type.__delattr__(kind, name)
    for name, value in attributes.items():
        if now.get(name, _ABSENT) is not value:
            type.__setattr__(kind, name, value)
