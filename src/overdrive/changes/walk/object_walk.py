"""All kinds of objects, each by what it is made of."""

from __future__ import annotations

import enum
import functools
import hashlib
import io
import pathlib
import random
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from overdrive.changes.code import is_library_module
from overdrive.changes.files import Files
from overdrive.changes.state import (
    BUILT_UPON,
    PLAIN,
    built_upon,
    has_state_of_c,
    hides_its_attributes,
    is_reduced_in_c,
    pickles_itself,
    plain_leaves,
    slots_of,
)
from overdrive.changes.walk.arrays import visit_array, visit_pandas, visit_torch, watch_names
from overdrive.changes.walk.code_walk import CodeWalk
from overdrive.changes.walk.made_by_c import OF_C, visit_error
from overdrive.changes.walk.speech import is_logger, is_only_written, is_output, visit_logger
from overdrive.changes.walk.unnamed import visit_around, visit_hooks_of_all
from overdrive.core.in_place import InPlace

_MOST_OBJECTS = 500_000
_DEEPEST = 150
_MOST_OF_ARROW = 8 << 20  # bytes, of a table and of each of its parts; a look at half as many takes more than 1 s
_ITEMS = (3, 4)  # where `__reduce_ex__` gives what a list or a dict holds, as iterators
_OF_ENUMS = frozenset(("_value_", "_name_", "_sort_order_", "__objclass__"))


class _TooMuch(Exception):
    pass


class ObjectWalk(CodeWalk):
    """From a data set to all that it is made of; `take` is called once."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.open_file = False
        self.of_process = hashlib.blake2b(digest_size=8)  # what another process would have otherwise
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._depth = 0
        self._bytes_of_arrow = 0

    def take(self, roots: tuple[Any, ...]) -> tuple[str, str]:
        """The digest of these together, and the same without the files that they name."""
        try:
            self.visit(roots)
            self.look_at_libraries()
            visit_around(self, self.names)
            visit_hooks_of_all(self, self.library_classes)
        except (_TooMuch, RecursionError):
            self.hide("it holds too many objects")
        if self.files.looked_for and self.files.too_many_absent:
            self.hide("its code may look for more files than can be watched")
        of_objects = self.hash.hexdigest() + self.of_process.hexdigest()
        self.emit("files", self.files.text())
        if self.files.too_many:
            self.hide("its folders hold too many files", here=False)
        digest = self.hash.hexdigest()
        self.watch.hold()
        return digest, of_objects

    def visit(self, thing: Any) -> None:
        kind = type(thing)
        if kind in PLAIN:
            self.emit(kind.__name__, repr(thing))
            if kind is str:
                self.files.note(thing)
            return
        if kind is tuple and plain_leaves(thing) is not None:  # which of equal ones it is is nobody's business
            self._container(thing, kind)
            return
        number = self._numbers.get(id(thing))
        if number is not None:
            self.emit("again", str(number))
            return
        self._numbers[id(thing)] = len(self._numbers)
        self._alive.append(thing)
        if len(self._numbers) > _MOST_OBJECTS or self._depth > _DEEPEST:
            raise _TooMuch
        self._depth += 1
        try:
            self._visit_object(thing, kind)
        finally:
            self._depth -= 1

    def _visit_object(self, thing: Any, kind: type) -> None:
        if kind in weakref.ProxyTypes:
            self.hide("it holds a weak reference")
        elif kind is weakref.ref and id(held := thing()) in self._numbers:  # by something else, which is watched
            self.each("weak", held)
        elif kind in (list, tuple, dict, set, frozenset):
            self._container(thing, kind)
        elif isinstance(thing, np.ndarray):
            visit_array(self, thing)
            self._own_parts(thing, kind)
        elif isinstance(thing, type):
            self.visit_class(thing)
        elif isinstance(thing, types.ModuleType):
            self.visit_module(thing)
        elif kind in _VISITORS:
            _VISITORS[kind](self, thing)
        elif isinstance(thing, BaseException):
            self._own_parts(thing, kind)
            visit_error(self, thing)
        elif isinstance(thing, pathlib.PurePath):
            self.emit("path", f"{kind.__name__} {thing}")
            self.files.note(str(thing))
            self._own_parts(thing, kind)
        elif isinstance(thing, slice):
            self.each("slice", thing.start, thing.stop, thing.step)
        elif isinstance(thing, (np.dtype, range)):
            self.emit(kind.__qualname__, repr(thing))
            if isinstance(thing, np.dtype):
                watch_names(self, thing)
        elif isinstance(thing, enum.Enum):
            self.emit(kind.__qualname__, repr(thing))
            self.visit(kind)
            self.watch.space(thing, vars(thing))
            for name, value in vars(thing).items():
                if name not in _OF_ENUMS:
                    self.visit((name, value))
        elif isinstance(thing, np.generic) and not thing.dtype.hasobject:
            self.emit(thing.dtype.str, thing.tobytes())
            if isinstance(thing, np.void):  # may be a view of an array's row
                self.watch.state(thing.tobytes)
                watch_names(self, thing.dtype)
        elif is_logger(thing):
            visit_logger(self, thing)
        elif isinstance(thing, io.IOBase):
            self._stream(thing)
        elif isinstance(thing, (np.random.RandomState, np.random.Generator)):
            self.generator(thing)
        elif visit_torch(self, thing, kind) or visit_pandas(self, thing, kind):
            self._own_parts(thing, kind)
        elif self._is_too_much_of_arrow(thing, kind):
            self.hide("it holds tables of Arrow's that are too large to be looked through")
        else:
            self._instance(thing, kind)

    def _is_too_much_of_arrow(self, thing: Any, kind: type) -> bool:
        """Its tables are pickled whole, and so is each of their parts: also those whose memory is a file's."""
        if kind.__module__.partition(".")[0] != "pyarrow":
            return False
        size = next((found for name in ("nbytes", "size") if isinstance(found := getattr(thing, name, None), int)), 0)
        self._bytes_of_arrow += size
        return self._bytes_of_arrow > _MOST_OF_ARROW

    def _stream(self, thing: io.IOBase) -> None:
        if is_only_written(thing) or is_output(thing):
            self.emit("stream")
            self.written_file = self.written_file or not is_output(thing)
        else:
            self.open_file = True
            self.hide("it holds an open file")

    def _container(self, thing: Any, kind: type) -> None:
        leaves = plain_leaves(thing)
        if leaves is not None:
            text = repr(sorted(map(repr, thing))) if kind in (set, frozenset) else repr(thing)
            self.emit(kind.__name__, text)
            if kind is set:
                self._order(thing)
            self.files.note_all([each for each in leaves if type(each) is str])
            self.watch.plain(thing)
            return
        self.emit(kind.__name__, str(len(thing)))
        if kind in (set, frozenset):
            # No order to go by, so each by itself; what is in a set is hashable and rarely large.
            self.emit("parts", repr(sorted(map(self._alone, thing))))
            if kind is set:
                self._order(thing)
            self.watch.items(thing)
        elif kind is dict:
            self.watch.items(thing)
            for key, value in thing.items():
                self.visit(key)
                self.visit(value)
        else:
            if kind is list:
                self.watch.items(thing)
            for each in thing:
                self.visit(each)

    def _order(self, things: Iterable[Any]) -> None:
        """A set's depends on what was in it before, and on the process."""
        order = [repr(each) if type(each) in PLAIN else self._alone(each) for each in things]
        self.of_process.update(repr(order).encode("utf-8", "surrogatepass"))

    def _alone(self, thing: Any) -> str:
        """The digest of one thing, whatever came before it."""
        whole, self.hash = self.hash, hashlib.blake2b(digest_size=32)
        numbers, self._numbers = self._numbers, {}
        try:
            self.visit(thing)
            return self.hash.hexdigest()
        finally:
            self.hash, self._numbers = whole, numbers

    def _own_parts(self, thing: Any, kind: type) -> None:
        """What a program's subclass, or the program itself, adds to an object that is visited in a way of its own."""
        if is_library_module(kind.__module__):
            self.library_classes.append(kind)
        else:
            self.visit(kind)
        space = getattr(thing, "__dict__", None)
        if isinstance(space, dict):
            self.watch.space(thing, space)
            self.visit(space)

    def cached_property(self, thing: Any) -> None:
        self.each("cached", thing.func, thing.attrname)
        self.watch.space(thing, vars(thing))

    def _instance(self, thing: Any, kind: type) -> None:
        space = getattr(thing, "__dict__", None)
        slots = slots_of(thing, kind)
        if hides_its_attributes(kind):
            self.hide(f"it holds a {kind.__module__}.{kind.__qualname__}, whose attributes cannot be seen")
        custom = pickles_itself(kind)
        more, in_c = has_state_of_c(kind), is_reduced_in_c(kind)
        if more and custom and not in_c:
            self.hide(f"it holds a {kind.__module__}.{kind.__qualname__}, whose state cannot be seen")
        in_c = in_c and (more or not isinstance(thing, tuple(BUILT_UPON)))
        told_by_attributes = custom and (isinstance(space, dict) or slots) and not in_c
        # Before the class is watched, to which it adds `__slotnames__`.
        parts = None if told_by_attributes else _reduced(thing)
        self.emit("instance")
        self.visit(kind)
        for each in built_upon(thing):
            self.visit(each)
        if isinstance(thing, (dict, list, set)):
            self.watch.items(thing)
        if isinstance(thing, set):
            self._order(list(set.__iter__(thing)))
        if isinstance(thing, random.Random):
            self.generator(thing)
        if isinstance(space, dict):
            self.watch.space(thing, space)
            self.emit("attributes", repr(list(space)))
            for value in space.values():
                self.visit(value)
        for name, value in slots:
            self.emit("slot", name)
            self.visit(value)
        if slots:
            self.watch.slots(thing)
        if told_by_attributes:
            return
        if parts is None:
            self.hide(f"it holds a {kind.__module__}.{kind.__qualname__}, whose state cannot be seen")
        elif custom:
            self.emit("reduced")
            self.watch.digest(thing, lambda: ObjectWalk(Files("", None)).take((thing,))[0])
            for place, part in enumerate(parts):
                items = place in _ITEMS and part is not None
                self.visit(list(part) if items else part)


def _reduced(thing: Any) -> tuple[Any, ...] | None:
    """What it is pickled as; None where that is refused: it has state of C's that nobody sees (locks, sockets,
    generators, handles)."""
    try:
        parts = thing.__reduce_ex__(4)
    except Exception:
        return None
    return parts if isinstance(parts, tuple) else (parts,)


_VISITORS: dict[type, Callable[[ObjectWalk, Any], None]] = {
    **OF_C,
    types.FunctionType: ObjectWalk.visit_function,
    types.MethodType: ObjectWalk.bound,
    types.BuiltinMethodType: ObjectWalk.bound,
    types.CodeType: ObjectWalk.visit_code,
    InPlace: lambda walk, thing: walk.visit(thing.__wrapped__),
    functools.cached_property: ObjectWalk.cached_property,
    type(functools.cache(lambda: None)): ObjectWalk.cached,
    random.Random: ObjectWalk.generator,
}
