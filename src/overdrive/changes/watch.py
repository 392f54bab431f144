"""Detects, before each batch, that a data set was changed since it was fingerprinted: all that the walk came upon."""

from __future__ import annotations

import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter, ne
from typing import Any

from overdrive.changes import word_places
from overdrive.changes.array_content import ArrayContent
from overdrive.changes.bindings import Bindings
from overdrive.changes.identities import Identities
from overdrive.changes.mappings import shared_places
from overdrive.changes.state import fields_of, slots_held
from overdrive.changes.words import Words

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
        self._words = Words()  # of all but the nearest, which are asked for more often
        self._words_near = Words()
        self._near = Identities(self._words_near)
        self._objects = Identities(self._words)
        self._of_libraries = Identities(self._words)
        self._owners: list[Any] = []  # of those attributes: they may be given others, all at once
        self._kinds: list[Any] = []
        self._cells: list[types.CellType] = []
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self._fixed: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self._digests: list[tuple[Callable[[], str], list[str]]] = []
        self._alive: list[Any] = []  # an id says nothing once its object is gone
        self._tensors: list[tuple[Any, Any]] = []
        self._arrays: list[ArrayContent] = []
        self._without_words: list[ArrayContent] = []  # among them
        self._shared: list[ArrayContent] | None = None
        self._bytes: list[tuple[bytearray, bytes]] = []
        self._states: list[tuple[Callable[[], Any], Any]] = []
        self._checks: list[Callable[[], bool]] = []

    def space(self, thing: Any, space: dict[str, Any]) -> None:
        """An object's attributes, and its class."""
        self._spaces.append(space)
        self._owners.append(thing)
        self.items(space)
        self.kind(thing)

    def kind(self, thing: Any) -> None:
        """An object's class."""
        self._kinds.append(thing)

    def of_class(self, kind: type) -> None:
        """What a class inherits from, its names, and which attributes it has; what they are is for `name`."""
        self._objects.add(iter, vars(kind), word_places.of_dict(vars(kind)))
        self._objects.add(_OF_CLASSES, kind, word_places.of_class(kind))
        self.kind(kind)

    def slot(self, thing: Any, name: str) -> None:
        """An attribute that lies in the object itself."""
        self._objects.add(partial(_slot, name), thing)

    def slots(self, thing: Any) -> None:
        """All of these together."""
        self._objects.add(slots_held, thing, word_places.of_object(thing))

    def fields(self, thing: Any) -> None:
        """What an object that C made holds."""
        self._objects.add(fields_of, thing, word_places.of_object(thing))

    def name(self, space: Mapping[str, Any], name: str) -> None:
        """One global that a function refers to, or one attribute of a class; there or not."""
        self._names.setdefault(id(space), (space, {}))[1][name] = None

    def fixed(self, space: Mapping[str, Any], name: str) -> None:
        """The same of a library's, which no fingerprint tells from another: it counts if it is replaced at all, but by
        a function of ours."""
        self._fixed.setdefault(id(space), (space, {}))[1][name] = None

    def cell(self, cell: types.CellType) -> None:
        """What a closure holds, or nothing."""
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
            self._objects.add(_keys_and_values, container, word_places.of_dict(container))
            if isinstance(container, OrderedDict):  # its order may change without the dict within it
                self._objects.add(OrderedDict.__iter__, container)
        elif isinstance(container, list):
            self._objects.add(list.__iter__, container, word_places.of_list(container))
        elif isinstance(container, bytearray):
            self._bytes.append((container, bytes(container)))
        elif isinstance(container, set):
            self._objects.add(set.__iter__, container)

    def array(self, array: Any, of: Any = None) -> None:
        """A numpy array. Its content is compared, or the kernel asked.

        Args:
            of: a tensor, whose memory it is as long as that does not move.
        """
        content = ArrayContent(array, None if of is None else partial(_has_moved, of, of.data_ptr()))
        self._arrays.append(content)
        if places := content.places():
            self._words.add(content.changed, places)
        else:
            self._without_words.append(content)

    def tensor(self, tensor: Any) -> None:
        """Where it lies, and how often it was written to, as far as it counts."""
        self._tensors.append((tensor, _place_of(tensor)))

    def function(self, function: types.FunctionType) -> None:
        """What a function is made of: its code, and what its arguments are where they are not given."""
        self._objects.add(_MADE_OF, function, word_places.of_function(function))

    def state(self, take: Callable[[], Any]) -> None:
        """A random generator, a lock or the like, by what gives its state."""
        self._states.append((take, take()))

    def digest(self, thing: Any, take: Callable[[], str]) -> None:
        """Any other object, by a digest that `seal` takes."""
        self._alive.append(thing)
        self._digests.append((take, []))

    def hold(self) -> None:
        """All has been told: from now on it is to stay as it is."""
        for near in self._spaces[:_QUICKLY]:
            self._near.add(dict.values, near, word_places.of_dict(near))
        for space, names in self._names.values():
            places = word_places.of_dict(space)
            if there := [name for name in names if name in space]:
                self._objects.add(itemgetter(there[0], *there), space, places)  # of one it would give no tuple
            if absent := names.keys() - there:
                self._objects.add(partial(_those_in, absent), space, places)
        for space, names in self._fixed.values():
            self._of_libraries.add(Bindings(names), space, word_places.of_dict(space))
        if self._kinds:
            self._objects.add(partial(map, type), tuple(self._kinds), word_places.of_types(self._kinds))
        if self._owners:
            self._objects.add(partial(map, vars), tuple(self._owners), word_places.of_spaces(self._owners))
        if self._cells:
            self._objects.add(partial(map, _content), tuple(self._cells), word_places.of_cells(self._cells))
        for each in (self._near, self._objects, self._of_libraries, self._words_near, self._words):
            each.seal()
        self._checks = self._all_checks()

    def in_fork(self) -> None:
        """From now on for this forked process, of whose writes the kernel keeps another account."""
        for array in self._arrays:
            array.in_fork()

    def seal(self) -> float:
        """Take the digests that are still to be taken. Returns the seconds that it takes to look."""
        for take, before in self._digests:
            before[:] = before or [take()]
        self._checks = self._all_checks()
        return min(self._timed() for _ in range(_LOOKS))

    def _timed(self) -> float:
        began = time.perf_counter()
        self.changed()
        return time.perf_counter() - began

    def touched(self) -> bool:
        """Whether attributes of the nearest objects were set, or their tensors written to. Takes some microseconds."""
        if self._words_near.changed() or self._near.changed_without_words():
            return True
        return any(_place_of(tensor) != place for tensor, place in self._tensors[:_QUICKLY])

    def replaced(self) -> bool:
        """Whether something of a library's was, looked at one by one."""
        return self._of_libraries.changed()

    def shared_changed(self) -> bool:
        """Whether an array was that lies in memory which other processes may share."""
        if self._shared is None:
            places = shared_places() if self._arrays else []
            self._shared = [each for each in self._arrays if places is None or each.lies_in(places)]
        return any(each.changed() for each in self._shared)

    def changed(self) -> bool:
        """Whether anything was."""
        return any(check() for check in self._checks)

    def _all_checks(self) -> list[Callable[[], bool]]:
        """All that a look asks, each of which takes 2 to 20 µs where the caches are cold."""
        checks = [self._words.changed]
        checks += [each.changed_without_words for each in (self._objects, self._of_libraries) if each.any_without_words]
        checks += [each.changed for each in self._without_words]
        checks += [partial(_is_elsewhere, tensor, place) for tensor, place in self._tensors]
        checks += [partial(_differs, take, before) for take, before in self._states]
        checks += [partial(_differs, take, before[0]) for take, before in self._digests if before]
        return checks + [partial(ne, now, before) for now, before in self._bytes]


def _is_elsewhere(tensor: Any, place: tuple[Any, ...]) -> bool:
    return _place_of(tensor) != place


def _has_moved(tensor: Any, start: int) -> bool:
    return bool(tensor.data_ptr() != start)


def _differs(take: Callable[[], Any], before: Any) -> bool:
    return bool(take() != before)


def _slot(name: str, thing: Any) -> tuple[Any, ...]:
    try:
        return (object.__getattribute__(thing, name),)  # which asks no method of the program's
    except AttributeError:
        return ()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _keys_and_values(container: dict[Any, Any]) -> Iterable[Any]:
    return chain(dict.keys(container), dict.values(container))


def _those_in(names: set[str], space: Mapping[str, Any]) -> list[str]:
    return [name for name in names if name in space]


def _place_of(tensor: Any) -> tuple[Any, ...]:
    state = _OF_INFERENCE if tensor.is_inference() else _STATE
    grad = id(tensor.grad) if tensor.is_leaf else None
    return state(tensor), tensor.data_ptr(), tensor.stride(), tensor.is_conj(), tensor.is_neg(), grad


_STATE = attrgetter("_version", "shape", "dtype", "requires_grad")
_OF_INFERENCE = attrgetter("shape", "dtype", "requires_grad")
_MADE_OF = attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__name__", "__qualname__", "__doc__")
_OF_CLASSES = attrgetter("__mro__", "__name__", "__qualname__")
_NOTHING = object()
_CONTAINERS = frozenset((list, tuple, dict, set))
