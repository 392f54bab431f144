"""Detects, before each batch, that a data set was changed since it was fingerprinted: all that the walk came upon."""

from __future__ import annotations

import time
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from overdrive.datacache.identities import Identities, Lists, differ, places_of
from overdrive.datacache.written_pages import Pages

# Of arrays from here on the kernel is asked whether they were written to, where it knows; others are compared.
_LARGE = 64 << 10
_PART = 1 << 20  # bytes that are copied and hashed at a time: they stay in the processor's cache
# Objects that are looked at for every sample: the data set itself comes first, then what it holds.
_QUICKLY = 64
_LOOKS = 3  # of which the quickest says what a look costs


class Watch:
    """What was seen of objects, containers and arrays, and whether it still is so.

    Nothing is sampled: what changed in any way is reported. A change that leaves everything equal may be reported as
    one (a number replaced by an equal number): the caller then takes a fingerprint, which decides.
    """

    def __init__(self) -> None:
        self._spaces: list[Mapping[str, Any]] = []
        self._near = Identities(dict.values, dict.__len__)
        self._keys = Identities(dict.keys, dict.__len__)
        self._values = Identities(dict.values, dict.__len__)
        self._ordered = Identities(OrderedDict.__iter__, dict.__len__)  # may change without the dict within it
        self._sets = Identities(set.__iter__, set.__len__)
        self._lists = Lists()
        self._attributes = Identities(iter, len)  # of classes, by name
        self._pools = (self._keys, self._values, self._ordered, self._sets, self._lists, self._attributes)
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self._fixed: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self._cells: list[types.CellType] = []
        self._functions: list[types.FunctionType] = []
        self._kinds: list[Any] = []
        self._slots: list[tuple[Any, str]] = []
        self._digests: list[tuple[Callable[[], str], list[str]]] = []
        self._alive: list[Any] = []  # an id says nothing once its object is gone
        self._tensors: list[tuple[Any, Any]] = []
        self._arrays: list[_Array] = []
        self._bytes: list[tuple[bytearray, bytes]] = []
        self._generators: list[tuple[Callable[[], Any], Any]] = []
        self._there: list[tuple[Mapping[str, Any], list[str]]] = []
        self._absent: list[tuple[Mapping[str, Any], set[str]]] = []

    def space(self, thing: Any, space: dict[str, Any]) -> None:
        """An object's attributes, and its class."""
        self._spaces.append(space)
        self.items(space)
        self.kind(thing)

    def kind(self, thing: Any) -> None:
        """An object's class."""
        self._kinds.append(thing)

    def attributes(self, space: Mapping[str, Any]) -> None:
        """Which attributes a class has; what they are is for `name`."""
        self._attributes.add(space)

    def slot(self, thing: Any, name: str) -> None:
        """An attribute that lies in the object itself."""
        self._slots.append((thing, name))

    def name(self, space: Mapping[str, Any], name: str) -> None:
        """One global that a function refers to, or one attribute of a class; there or not."""
        self._names.setdefault(id(space), (space, {}))[1][name] = None

    def fixed(self, space: Mapping[str, Any], name: str) -> None:
        """The same of a library's, which no fingerprint tells from another: it counts if it is replaced at all."""
        self._fixed.setdefault(id(space), (space, {}))[1][name] = None

    def cell(self, cell: types.CellType) -> None:
        """What a closure holds."""
        self._cells.append(cell)

    def plain(self, container: Any) -> None:
        """A list or the like of plain values, in at most three levels."""
        self.items(container)
        if isinstance(container, (list, tuple)) and _CONTAINERS.isdisjoint(map(type, container)):
            return
        for each in container.values() if isinstance(container, dict) else container:
            if type(each) in _CONTAINERS:
                self.plain(each)

    def items(self, container: Any) -> None:
        """A container whose values have been looked at one by one."""
        if isinstance(container, dict):
            self._keys.add(container)
            self._values.add(container)
            if isinstance(container, OrderedDict):
                self._ordered.add(container)
        elif isinstance(container, list):
            self._lists.add(container)
        elif isinstance(container, bytearray):
            self._bytes.append((container, bytes(container)))
        elif isinstance(container, set):
            self._sets.add(container)

    def array(self, array: Any) -> None:
        """A numpy array. Its content is compared, or the kernel asked."""
        self._arrays.append(_Array(array))

    def tensor(self, tensor: Any) -> None:
        """Where it lies, and how often it was written to, as far as it counts."""
        self._tensors.append((tensor, _place_of(tensor)))

    def function(self, function: types.FunctionType) -> None:
        """What a function is made of: its code, and what its arguments are where they are not given."""
        self._functions.append(function)

    def generator(self, take: Callable[[], Any]) -> None:
        """A random generator, by what gives its state."""
        self._generators.append((take, take()))

    def digest(self, thing: Any, take: Callable[[], str]) -> None:
        """Any other object, by a digest that `seal` takes."""
        self._alive.append(thing)
        self._digests.append((take, []))

    def hold(self) -> None:
        """All has been told: from now on it is to stay as it is."""
        for near in self._spaces[:_QUICKLY]:
            self._near.add(near)
        for pool in (self._near, *self._pools):
            pool.seal()
        for space, names in self._names.values():
            there = [name for name in names if name in space]
            self._there.append((space, there))
            if absent := names.keys() - there:
                self._absent.append((space, absent))
        self._bound = _Held(self._now_bound())
        self._of_libraries = _Held(self._now_fixed())
        self._made_of = _Held(self._now_functions())
        self._slotted = _Held(self._now_slotted())
        self._classes = _Held(list(map(type, self._kinds)))

    def in_fork(self) -> None:
        """From now on for this forked process, of whose writes the kernel keeps another account."""
        for array in self._arrays:
            array.in_fork()

    def seal(self) -> float:
        """Take the digests that are still to be taken. Returns the seconds that it takes to look."""
        for take, before in self._digests:
            before[:] = before or [take()]
        return min(self._timed() for _ in range(_LOOKS))

    def _timed(self) -> float:
        began = time.perf_counter()
        self.changed()
        return time.perf_counter() - began

    def touched(self) -> bool:
        """Whether attributes of the nearest objects were set, or their tensors written to. Takes some microseconds."""
        if self._near.changed():
            return True
        return any(_place_of(tensor) != place for tensor, place in self._tensors[:_QUICKLY])

    def replaced(self) -> bool:
        """Whether something of a library's was."""
        return self._of_libraries.changed(self._now_fixed())

    def changed(self) -> bool:
        """Whether anything else was."""
        try:
            bound = self._now_bound()
        except (KeyError, ValueError):  # a name, or a closure's, that stands for nothing now
            return True
        return (
            any(pool.changed() for pool in self._pools if pool.any)
            or self._bound.changed(bound)
            or not all(space.keys().isdisjoint(names) for space, names in self._absent)
            or self._classes.changed(list(map(type, self._kinds)))
            or self._slotted.changed(self._now_slotted())
            or self._made_of.changed(self._now_functions())
            or any(_place_of(tensor) != place for tensor, place in self._tensors)
            or any(now != before for now, before in self._bytes)
            or any(array.changed() for array in self._arrays)
            or any(take() != before for take, before in self._generators)
            or any(before and take() != before[0] for take, before in self._digests)
        )

    def _now_bound(self) -> list[Any]:
        """What names stand for, and what closures hold."""
        found = list(map(_CONTENTS, self._cells))
        for space, names in self._there:
            found += map(space.__getitem__, names)
        return found

    def _now_fixed(self) -> list[Any]:
        return [space.get(name, _GONE) for space, names in self._fixed.values() for name in names]

    def _now_functions(self) -> list[Any]:
        return [part for each in self._functions for part in (each.__code__, each.__defaults__, each.__kwdefaults__)]

    def _now_slotted(self) -> list[Any]:
        return [getattr(thing, name, None) for thing, name in self._slots]


class _Held:
    """Objects, to be found at the same places again."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._places = places_of(items)

    def changed(self, items: list[Any]) -> bool:
        return differ(items, self._items, self._places)


class _Array:
    """What an array held. Small ones are compared with a copy; of large ones the kernel keeps account, if it can."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self._pages = self._whole_pages()
        self._held = array.ravel().tolist() if array.dtype.hasobject else None  # an object's place means that object
        self._form = _form(array)
        self._content = self._now()

    def _whole_pages(self) -> Pages | None:
        array = self.array
        if array.nbytes >= _LARGE and not array.dtype.hasobject and array.flags.forc:
            return Pages.of(array.__array_interface__["data"][0], array.nbytes)
        return None

    def in_fork(self) -> None:
        if self._pages is not None:
            self._pages = self._whole_pages()
            self._content = self._now()

    def changed(self) -> bool:
        if self._pages is not None and self._pages.written():
            return True
        return _form(self.array) != self._form or self._now() != self._content

    def _now(self) -> Any:
        """All of its bytes; of those that the kernel sees the ends alone; of many a hash of each part, in order.

        Python's hash of bytes (SipHash) sees where each byte stands, as a sum does not: rows that only changed places
        are another content. It has a key of this process, which forked ones share.
        """
        array = self.array
        if array.dtype.hasobject:
            return np.ascontiguousarray(array).tobytes()
        flat = array.reshape(-1, order="A") if array.flags.forc else np.ascontiguousarray(array).reshape(-1)
        flat = flat.view(np.uint8)
        if self._pages is not None:
            first = self._pages.start - flat.__array_interface__["data"][0]
            return flat[:first].tobytes(), flat[first + self._pages.end - self._pages.start :].tobytes()
        if len(flat) < _LARGE:
            return flat.tobytes()
        return [hash(flat[start : start + _PART].tobytes()) for start in range(0, len(flat), _PART)]


def _place_of(tensor: Any) -> tuple[Any, ...]:
    version = None if tensor.is_inference() else tensor._version
    return version, tensor.data_ptr(), tensor.shape, tensor.stride()


def _form(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.strides, array.__array_interface__["data"][0]


_GONE = object()
_CONTAINERS = frozenset((list, tuple, dict, set))
_CONTENTS = attrgetter("cell_contents")
