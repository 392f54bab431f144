"""The fingerprint of a data set: one hash of all it is made of, equal only where the samples must be equal.

Attributes are followed down to plain values, arrays by their content, code by what it is and refers
to, paths by size and modification time. An object whose state cannot be seen makes it no hash at all.
"""

from __future__ import annotations

import enum
import functools
import gc
import hashlib
import io
import os
import pathlib
import random
import re
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.datacache import code
from overdrive.datacache.files import Files, NoFiles, looks_for_files
from overdrive.datacache.generators import frozen, state_of
from overdrive.datacache.mappings import is_mapped_for_writing
from overdrive.datacache.spoken import may_speak
from overdrive.datacache.state import PLAIN, hash_of, is_reduced_in_c, pickles_itself, plain_leaves, slots_of
from overdrive.datacache.watch import Watch

STANDS_FOR = "overdrive_stands_for"  # set on a method of ours: the one that it replaced
_SMALL = 1 << 20
_MOST_OBJECTS = 500_000
_DEEPEST = 150
_CLASS_NOISE = re.compile(
    "__(dict|weakref|doc|module|annotations|static_attributes|firstlineno|annotate|annotate_func"
    "|annotations_cache|slotnames|parameters|orig_bases|abstractmethods|match_args|qualname)__|_abc_impl"
)


_OF_ENUMS = frozenset(("_value_", "_name_", "_sort_order_", "__objclass__"))


@dataclass(frozen=True)
class Fingerprint:
    """`digest` holds for this process; across processes only where nothing is `hidden`."""

    digest: str
    of_objects: str  # the same without the files that they name
    hidden: str | None  # a kind of object, or another reason, why the digest may not tell two states apart
    hidden_here: str | None  # the same within this process, whose code is what it is, whatever its files say
    open_file: bool  # an open file was among the attributes
    may_speak: bool  # its code may print, or log
    asks_where: bool  # its code may ask in which process it runs
    watch: Watch
    files: Files


def fingerprint(
    *roots: Any, besides: str = "", content: bool = True, earlier: Fingerprint | None = None
) -> Fingerprint:
    """Take the fingerprint of these objects together; files under the folder `besides` do not count.

    Without `content`, what arrays and tensors hold does not count either, nor is it watched. Files that an
    `earlier` one has looked at are taken for what they were then: half of the time, where there are many.
    """
    return _taken(_Walk(content, Files(besides, earlier.files if earlier else None)), roots)


def of_objects(*roots: Any) -> str:
    """A fingerprint's `of_objects`, alone: a third of the time, where many files are named."""
    return objects_again(*roots).of_objects


def objects_again(*roots: Any) -> Fingerprint:
    """Of the same objects a while later; files do not count."""
    return _taken(_Walk(True, NoFiles()), roots)


def _taken(walk: _Walk, roots: tuple[Any, ...]) -> Fingerprint:
    try:
        walk.visit(roots)
        walk.look_at_libraries()
    except (_TooMuch, RecursionError):
        walk.hide("it holds too many objects")
    objects = walk.hash.hexdigest()
    walk.emit("files", walk.files.text())
    if walk.files.too_many:
        walk.hide("its folders hold too many files", here=False)
    digest = walk.hash.hexdigest()
    walk.watch.hold()
    return Fingerprint(
        digest,
        objects,
        walk.hidden,
        walk.hidden_here,
        walk.open_file,
        walk.may_speak,
        walk.asks_where,
        walk.watch,
        walk.files,
    )


class _TooMuch(Exception):
    pass


class _Walk:
    def __init__(self, content: bool, files: Files) -> None:
        self._content = content
        self.hash = hashlib.blake2b(digest_size=32)
        self.hidden: str | None = None
        self.hidden_here: str | None = None
        self.open_file = False
        self.may_speak = False
        self.asks_where = False
        self.watch = Watch()
        self.files = files
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._depth = 0
        self._library_classes: list[type] = []
        self._modules: list[types.ModuleType] = []
        self._names: set[str] = set()  # that code uses
        self._set: set[str] = set()  # attributes that it sets

    def emit(self, kind: str, content: str | bytes = b"") -> None:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        self.hash.update(f"{kind}:{len(data)}:".encode())
        self.hash.update(data)

    def hide(self, reason: str, here: bool = True) -> None:
        self.hidden = self.hidden or reason
        if here:
            self.hidden_here = self.hidden_here or reason
        self.emit("hidden", reason)

    def visit(self, thing: Any) -> None:
        kind = type(thing)
        if kind in PLAIN:
            self.emit(kind.__name__, repr(thing))
            if kind is str:
                self.files.note(thing)
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
        if kind in (list, tuple, dict, set, frozenset):
            self._container(thing, kind)
        elif isinstance(thing, np.ndarray):
            self._array(thing)
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, types.ModuleType):
            self._modules.append(thing)
            self._module(thing.__name__)
        elif kind in _VISITORS:
            _VISITORS[kind](self, thing)
        elif isinstance(thing, pathlib.PurePath):
            self.emit("path", f"{kind.__name__} {thing}")
            self.files.note(str(thing))
        elif isinstance(thing, (np.dtype, range, slice)):
            self.emit(kind.__qualname__, repr(thing))
        elif isinstance(thing, enum.Enum):
            self.emit(kind.__qualname__, repr(thing))
            self.watch.space(thing, vars(thing))
            for name, value in vars(thing).items():
                if name not in _OF_ENUMS:
                    self.visit((name, value))
        elif isinstance(thing, np.generic) and not thing.dtype.hasobject:
            self.emit(thing.dtype.str, thing.tobytes())
        elif isinstance(thing, io.IOBase):
            self.open_file = True
            self.hide("it holds an open file")
        elif isinstance(thing, (np.random.RandomState, np.random.Generator)):
            self._generator(thing)
        elif not self._torch(thing, kind) and not self._frame(thing, kind):
            self._instance(thing, kind)

    def _container(self, thing: Any, kind: type) -> None:
        leaves = plain_leaves(thing)
        if leaves is not None:
            text = repr(sorted(map(repr, thing))) if kind in (set, frozenset) else repr(thing)
            self.emit(kind.__name__, text)
            self.files.note_all([each for each in leaves if type(each) is str])
            self.watch.plain(thing)
            return
        self.emit(kind.__name__, str(len(thing)))
        if kind in (set, frozenset):
            # No order to go by, so each by itself; what is in a set is hashable and rarely large.
            self.emit("parts", repr(sorted(map(self._alone, thing))))
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

    def _alone(self, thing: Any) -> str:
        """The digest of one thing, whatever came before it."""
        whole, self.hash = self.hash, hashlib.blake2b(digest_size=32)
        numbers, self._numbers = self._numbers, {}
        try:
            self.visit(thing)
            return self.hash.hexdigest()
        finally:
            self.hash, self._numbers = whole, numbers

    def _array(self, array: Any) -> None:
        self.emit("array", f"{type(array).__name__} {array.dtype.str} {array.dtype.descr} {array.shape}")
        if not self._content and not array.dtype.hasobject:
            return
        if isinstance(array, np.memmap) and array.filename is not None:
            self.files.note(str(array.filename))
            whole = np.frombuffer(array._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
            place = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
            self.emit("mapped", repr((str(array.filename), array.offset, place, array.strides, array.mode)))
            if array.mode not in ("r", None) or is_mapped_for_writing(str(array.filename)):
                self.hide("it holds a file mapped for writing")
            elif array.nbytes <= _SMALL:
                self.watch.array(array)  # the kernel does not tell of what is written through another mapping
            return
        self.watch.array(array)
        if array.dtype == object:
            self.visit(array.ravel().tolist())
        elif array.dtype.hasobject:
            self.hide("it holds an array of structures with objects")
        else:
            self.emit("content", hash_of(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
            if array.dtype.kind == "U":
                self.files.note_all(array.ravel().tolist())

    def _generator(self, generator: Any) -> None:
        self.emit("generator", repr(frozen(state_of(generator))))
        self.watch.generator(lambda: frozen(state_of(generator)))

    def _torch(self, thing: Any, kind: type) -> bool:
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        if isinstance(thing, torch.Tensor):
            self._tensor(thing, kind, torch)
        elif isinstance(thing, torch.Generator):
            self._generator(thing)
        elif isinstance(thing, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)):
            self.emit(kind.__name__, repr(thing))
        else:
            return False
        return True

    def _tensor(self, tensor: Any, kind: type, torch: Any) -> None:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            self.hide("it holds a tensor that is not on the CPU, or sparse")
            return
        name = f"{kind.__qualname__} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
        self.emit("tensor", f"{name} {tensor.requires_grad}")
        if not self._content:
            return
        plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
        content = plain.reshape(-1).view(torch.uint8).numpy()
        self.watch.tensor(tensor)
        if content.ctypes.data == tensor.data_ptr():  # no copy: what is watched is the tensor itself
            self.watch.array(content)
        self.emit("content", hash_of(content))

    def _frame(self, thing: Any, kind: type) -> bool:
        """A pandas table, column or index."""
        name = f"{kind.__module__.split('.')[0]}.{kind.__name__}"
        if name == "pandas.DataFrame":
            self.emit(name, repr([str(each) for each in thing.dtypes]))
            self.visit([thing.columns.to_numpy(), thing.index.to_numpy()])
            for position in range(thing.shape[1]):
                self.visit(thing.iloc[:, position].to_numpy())
        elif name in ("pandas.Series", "pandas.Index"):
            self.emit(name, f"{thing.dtype} {thing.name}")
            self.visit(thing.to_numpy())
        else:
            return False
        return True

    def _module(self, name: str) -> None:
        if code.is_library_module(name):
            self.emit("library", code.version_of(name))
            return
        source = code.source_of(name)
        if source is None:
            self.hide(f"the source of {name} is not there or newer than this process", here=False)
        else:
            self.emit("source", source)

    def _names_in(self, module: types.ModuleType, names: set[str]) -> None:
        """What code may find in a module, by the names that it uses: `settings.SIZE`."""
        library, space = code.is_library_module(module.__name__), vars(module)
        for name in sorted(names & space.keys()):
            if library:
                self.watch.fixed(space, name)
            else:
                self.watch.name(space, name)
            if not library or _is_programs_own(space[name]):  # a library's function that the program has replaced
                self.emit("attribute", name)
                self.visit(space[name])

    def _class(self, kind: type) -> None:
        self.emit("class", f"{kind.__module__}.{kind.__qualname__}")
        self._module(kind.__module__)
        if code.is_library_module(kind.__module__):
            self._library_classes.append(kind)
            return
        for base in (*kind.__bases__, *([type(kind)] if type(kind) is not type else [])):
            self.visit(base)
        space = vars(kind)
        self.watch.attributes(space)
        for name in sorted(space):
            if not _CLASS_NOISE.fullmatch(name) and not isinstance(space[name], _DESCRIPTORS):
                self.emit("attribute", name)
                self.watch.name(space, name)
                # Where prefix_cache has put its own method, the class is still what its author wrote.
                self.visit(getattr(space[name], STANDS_FOR, space[name]))

    def look_at_libraries(self) -> None:
        """What code may find in modules and classes of libraries, once all of it is known."""
        known: tuple[int, int] | None = None
        while known != (known := (len(self._modules), len(self._names))):
            for module in list(self._modules):
                self._names_in(module, set(self._names))
        for module in self._modules:
            if code.is_library_module(module.__name__):
                for name in self._set - vars(module).keys():  # a counter, say, that is put there
                    self.watch.fixed(vars(module), name)
        for kind in self._library_classes:
            for base in kind.__mro__:
                for name in self._names & vars(base).keys():
                    self.watch.fixed(vars(base), name)

    def function(self, function: types.FunctionType) -> None:
        self.emit("function", f"{function.__module__}.{function.__qualname__}")
        if code.is_library_code(function.__code__):
            self.emit("library", code.version_of(function.__module__ or ""))
        else:
            self._module(function.__module__ or "")
            self.watch.function(function)
            self._code(function.__code__)
            self._surroundings(function.__code__, function.__globals__)
        self.visit(function.__defaults__)
        self.visit(function.__kwdefaults__)
        self.visit(function.__dict__)
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
                self.watch.cell(cell)
                self.visit(held)
            except ValueError:
                self.emit("empty cell")

    def _code(self, each: types.CodeType) -> None:
        signature = (each.co_argcount, each.co_kwonlyargcount, each.co_posonlyargcount, each.co_flags)
        self.emit("code", each.co_code)
        self._names.update(each.co_names)
        self._set |= code.attributes_set(each)
        self.may_speak = self.may_speak or may_speak(each)
        self.asks_where = self.asks_where or code.asks_where(each)
        if code.asks_for_the_time(each):
            self.hide("its code may ask what time it is")
        self.files.looked_for = self.files.looked_for or looks_for_files(each)
        self.emit("names", repr((signature, each.co_names, each.co_varnames, each.co_freevars)))
        for constant in code.constants(each):
            if isinstance(constant, str):  # a text such as "." is a folder only where it looks like a path
                self.emit("constant", constant)
                if os.sep in constant.strip(os.sep):
                    self.files.note(constant)
            else:
                self.visit(constant)
        environment = code.environment_read(each)
        if environment:
            self.watch.items(os.environ._data)  # type: ignore[attr-defined]
        self.emit("environment", repr(sorted(environment.items())))
        for inner in code.nested(each):
            self._code(inner)

    def _surroundings(self, each: types.CodeType, space: dict[str, Any]) -> None:
        """What code reads of the world outside of it."""
        names = code.names_of(each)
        for name in sorted(code.globals_read(each) | (code.globals_told(each) & space.keys())):
            self.emit("global", name)
            self.watch.name(space, name)
            if name in space:
                self.visit(space[name])
                if isinstance(space[name], types.ModuleType):
                    self._names_in(space[name], names)
        for module in code.modules_imported(each):
            self.visit(module)
            self._names_in(module, names)

    def bound(self, method: Any) -> None:
        """A method, of Python or of C, with what it is bound to."""
        owner = getattr(method, "__self__", None)
        self.emit("bound", f"{getattr(method, '__module__', None)}.{method.__qualname__}")
        if owner is random._inst or owner is np.random.mtrand._rand:
            return  # their state changes with every draw of the program; a draw is noticed otherwise
        self.visit(owner)
        if isinstance(method, types.MethodType):
            self.visit(method.__func__)

    def bytearray(self, thing: Any) -> None:
        self.emit("bytearray", bytes(thing))
        self.watch.plain(thing)

    def each(self, *parts: Any) -> None:
        for part in parts:
            self.visit(part)

    def _instance(self, thing: Any, kind: type) -> None:
        self.emit("instance")
        self.visit(kind)
        for base in _BUILT_UPON:
            if isinstance(thing, base):
                self.visit(base(thing))
        if isinstance(thing, (dict, list, set)):
            self.watch.items(thing)
        space = getattr(thing, "__dict__", None)
        slots = slots_of(thing, kind)
        if isinstance(space, dict):
            self.watch.space(thing, space)
            self.emit("attributes", repr(list(space)))
            for value in space.values():
                self.visit(value)
        for name, value in slots:
            self.emit("slot", name)
            self.watch.slot(thing, name)
            self.visit(value)
        custom = pickles_itself(kind)
        in_c = is_reduced_in_c(kind) and not isinstance(thing, _BUILT_UPON)
        if custom and (isinstance(space, dict) or slots) and not in_c:
            return
        try:
            # Refuses what has state of C's that it cannot see: locks, sockets, generators, handles.
            parts = thing.__reduce_ex__(4)
        except Exception:
            self.hide(f"it holds a {kind.__module__}.{kind.__qualname__}, whose state cannot be seen")
            return
        if custom:
            self.emit("reduced")
            self.watch.digest(thing, lambda: fingerprint(thing).digest)
            for part in parts if isinstance(parts, tuple) else (parts,):
                plain = isinstance(part, (list, tuple, dict)) or not hasattr(part, "__next__")
                self.visit(part if plain else list(part))


def _is_programs_own(thing: Any) -> bool:
    """A function that is neither a library's nor ours."""
    if not isinstance(thing, types.FunctionType) or code.is_library_code(thing.__code__):
        return False
    return (thing.__module__ or "").split(".")[0] != __name__.split(".")[0]


_BUILT_UPON: tuple[Any, ...] = (dict, list, tuple, set, frozenset, str, bytes, int, float)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_VISITORS: dict[type, Callable[[_Walk, Any], None]] = {
    types.FunctionType: _Walk.function,
    types.MethodType: _Walk.bound,
    types.BuiltinMethodType: _Walk.bound,
    types.CodeType: _Walk._code,
    staticmethod: lambda walk, thing: walk.each("static", thing.__func__),
    classmethod: lambda walk, thing: walk.each("class method", thing.__func__),
    property: lambda walk, thing: walk.each("property", thing.fget, thing.fset, thing.fdel),
    functools.partial: lambda walk, thing: walk.each("partial", thing.func, thing.args, thing.keywords),
    functools.cached_property: lambda walk, thing: walk.each("cached", thing.func),
    type(functools.cache(lambda: None)): lambda walk, thing: walk.each("cached", thing.__wrapped__),
    random.Random: _Walk._generator,
    # What it is a view of: a copy would not change with it.
    types.MappingProxyType: lambda walk, thing: walk.each("proxy", *gc.get_referents(thing)),
    type(NotImplemented): lambda walk, thing: walk.emit("not implemented"),
    type(...): lambda walk, thing: walk.emit("ellipsis"),
    bytearray: _Walk.bytearray,
    # Nobody's data; but another process would need one of its own.
    type(threading.Lock()): lambda walk, thing: walk.hide("it holds a lock", here=False),
    type(threading.RLock()): lambda walk, thing: walk.hide("it holds a lock", here=False),
}
for _kind in (types.WrapperDescriptorType, types.MethodDescriptorType, np.ufunc, types.MethodWrapperType):
    _VISITORS[_kind] = lambda walk, thing: walk.emit("builtin", repr(getattr(thing, "__name__", thing)))
