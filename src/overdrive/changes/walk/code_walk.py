"""Code: what functions, classes and modules are, and what they find in the world around them."""

from __future__ import annotations

import builtins
import collections
import os
import re
import sys
import types
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from overdrive.changes import code
from overdrive.changes.bindings import is_ours
from overdrive.changes.called import MADE_ON_THE_HEAP
from overdrive.changes.files import Files, looks_for_files, open_files
from overdrive.changes.library_versions import version_of
from overdrive.changes.spoken import may_speak
from overdrive.changes.state import remembered_by
from overdrive.changes.walk.asked import gives_state, not_to_be_watched, settings_asked, shared_generators, tables_asked
from overdrive.changes.walk.declared import Registered, visit_annotations
from overdrive.changes.walk.walk import Walk
from overdrive.core.in_place import STANDS_FOR

_CLASS_NOISE = re.compile(
    "__(dict|weakref|doc|module|annotations|static_attributes|firstlineno|annotate|annotate_func"
    "|annotations_cache|slotnames|parameters|orig_bases|abstractmethods|match_args|qualname)__|_abc_impl"
)
# Names, each in each module: what holds `sys.modules` itself took more than a minute.
_MOST_LOOKED_UP = 2_000_000
_CALLED = (property, staticmethod, classmethod)
# Methods that are called without their names, and may come to be there late.
_BY_OPERATORS = {name for kind in (dict, list, int, set) for name in dir(kind) if name.startswith("__")}
_BY_OPERATORS |= {f"__{name}__" for name in ("getattr", "missing", "call", "get", "set")}
_SAID = frozenset(("__doc__", "__module__"))
# Reads from a file that was opened long ago, and that nobody has to name.
_BY_DESCRIPTOR = frozenset(("pread", "preadv", "fdopen", "sendfile"))
_ALL_AROUND = ("./", "../")  # folders of far more than data: the program's own
_BEGIN = ("__init__", "__post_init__")
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class CodeWalk(Walk):
    """Knows afterwards whether code may print, or asks in which process it runs."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.may_speak = False
        self.asks_where = False
        self.asks_mode = False  # what it makes hangs on whether gradients are recorded, which is watched
        self.library_classes: list[type] = []
        self._own: list[Any] = []  # classes and functions of the program's
        self._modules: list[types.ModuleType] = []
        self._inner_modules: dict[int, types.ModuleType] = {}  # of libraries, that code may come to by another
        self.names: set[str] = set()  # that code uses
        self._set: set[str] = set()  # attributes that it sets
        self._shared = False  # it may come to a generator that the whole program draws from

    def visit_module(self, module: types.ModuleType) -> None:
        self._modules.append(module)
        self._module(module.__name__)
        if not code.is_library_module(module.__name__):
            self.watch.kind(module)
            self.visit(type(module))

    def _module(self, name: str) -> None:
        if code.is_library_module(name):
            self.emit("library", version_of(name))
            return
        source = code.source_of(name)
        if source is None:
            self.hide(f"the source of {name} is not there or newer than this process", here=False)
        else:
            self.emit("source", source)

    def visit_class(self, kind: type) -> None:
        self.emit("class", f"{kind.__module__}.{kind.__qualname__}")
        self._module(kind.__module__)
        if code.is_library_module(kind.__module__):
            self.library_classes.append(kind)
            return
        for base in (*kind.__bases__, *([type(kind)] if type(kind) is not type else [])):
            self.visit(base)
        space = vars(kind)
        self._own.append(kind)
        self.emit("named", kind.__name__)
        self.watch.of_class(kind)
        for name in sorted(space):
            if name in _SAID:
                self.watch.name(space, name)
                self.emit(name, str(space[name]))
            elif not _CLASS_NOISE.fullmatch(name) and not isinstance(space[name], _DESCRIPTORS):
                self.emit("attribute", name)
                self.watch.name(space, name)
                # Where prefix_cache has put its own method, the class is still what its author wrote.
                self.visit(getattr(space[name], STANDS_FOR, space[name]))

    def visit_function(self, function: types.FunctionType) -> None:
        self.emit("function", f"{function.__module__}.{function.__qualname__}")
        if code.is_library_code(function.__code__):
            self.emit("library", version_of(function.__module__ or ""))
            if gives_state(function.__name__, function):
                self._shared = True
                self.names.add(function.__name__)
        else:
            self._module(function.__module__ or "")
            self._own.append(function)
            self.watch.function(function)
            self.emit("named", repr((function.__name__, str(function.__doc__))))
            self.visit_code(function.__code__)
            self._surroundings(function.__code__, function.__globals__)
        self.visit(function.__defaults__)
        self.visit(function.__kwdefaults__)
        self.visit(function.__dict__)
        for cell in function.__closure__ or ():
            try:
                self.watch.cell(cell)
                self.visit(cell.cell_contents)
            except ValueError:
                self.emit("empty cell")

    def cached(self, function: Any) -> None:
        """What it remembers is as old as that is: to forget it, or to remember more, is a change."""
        self.each("cached", function.__wrapped__, function.__dict__)
        module = sys.modules.get(function.__module__)
        if not code.is_library_module(function.__module__) or getattr(module, function.__name__, None) is not function:
            self.state(lambda: function.cache_info()[1:])
            if (found := remembered_by(function)) is None:
                return self.hide("it holds a function that remembers what cannot be seen")
            kept, remembered = found
            self.watch.items(kept)
            self.each("remembered", *chain.from_iterable(remembered.items()))

    def bound(self, method: Any) -> None:
        """A method, of Python or of C, with what it is bound to."""
        owner = getattr(method, "__self__", None)
        self.emit("bound", f"{getattr(method, '__module__', None)}.{method.__qualname__}")
        if any(owner is each for each in shared_generators()):
            self._shared = True
            self.names.add(method.__name__)
            return  # their state changes with every draw of the program; a draw is noticed otherwise
        self.visit(owner)
        if isinstance(method, types.MethodType):
            self.visit(method.__func__)

    def visit_code(self, each: types.CodeType, begins: bool = False) -> None:
        """`begins`: it is part of what sets an object up, which holds what comes of that."""
        begins = begins or each.co_name in _BEGIN
        signature = (each.co_argcount, each.co_kwonlyargcount, each.co_posonlyargcount, each.co_flags)
        self.emit("code", each.co_code)
        self.names.update(each.co_names, code.globals_told(each))
        self._set |= code.attributes_set(each)
        self.may_speak = self.may_speak or may_speak(each)
        self.asks_where = self.asks_where or code.asks_where(each)
        if code.asks_for_the_time(each):
            self.hide("its code may ask what time it is")
        if not begins and code.seeds_itself(each):
            self.hide("its code may draw from a generator that seeds itself")
        if code.looks_around(each):
            self.hide("its code may look around in the interpreter")
        if code.reads_addresses(each):
            self.hide("its code may read memory by its address")
        self.files.looked_for = self.files.looked_for or looks_for_files(each)
        self.emit("names", repr((signature, each.co_names, each.co_varnames, each.co_freevars)))
        for constant in code.constants(each):
            if isinstance(constant, str):  # a text such as "." is a folder only where it looks like a path
                self.emit("constant", constant)
                # Such as `data/` is as well, behind which a file's name is put.
                if os.sep in constant.lstrip(os.sep) and constant not in _ALL_AROUND:
                    self.files.note(constant)
            else:
                self.visit(constant)
        environment = code.environment_read(each)
        if environment:
            self.watch.items(os.environ._data)  # type: ignore[attr-defined]
        self.emit("environment", repr(sorted(environment.items())))
        for inner in code.nested(each):
            self.visit_code(inner, begins)

    def _surroundings(self, each: types.CodeType, space: dict[str, Any]) -> None:
        """What code reads of the world outside of it."""
        told = code.globals_told(each)
        names = code.names_of(each) | told
        for name in sorted(code.globals_read(each) | (told & space.keys())):
            self.emit("global", name)
            self.watch.name(space, name)
            if name in space:
                self.visit(space[name])
                if isinstance(space[name], types.ModuleType):
                    self._names_in(space[name], names)
            else:  # where Python looks next
                self._names_in(builtins, {name})
                self.watch.fixed(vars(builtins), name)
        for name in code.modules_imported(each, str(space.get("__package__") or "")):
            self._imported(name, names)

    def _imported(self, name: str, names: set[str]) -> None:
        """A module that an import finds by its name, if there is one."""
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType):
            return
        if code.is_library_module(name):
            self.watch.fixed(sys.modules, name)
        else:
            self.watch.name(sys.modules, name)
        self.visit(module)
        self._names_in(module, names)

    def _names_in(self, module: types.ModuleType, names: set[str]) -> None:
        """What code may find in a module, by the names that it uses: `settings.SIZE`."""
        library, space = code.is_library_module(module.__name__), vars(module)
        if not library:
            names = {*names, "__getattr__"}
            for name in names - space.keys():
                self.watch.name(space, name)
        for name in sorted(names & space.keys()):
            if library:
                self.watch.fixed(space, name)
                self._shared = self._shared or gives_state(name, space[name])
            else:
                self.watch.name(space, name)
            if not library or _is_programs_own(module, space[name]):
                self.emit("attribute", name)
                self.visit(space[name])
            elif isinstance(space[name], types.ModuleType) and code.is_library_module(space[name].__name__):
                self._inner_modules[id(space[name])] = space[name]
            elif isinstance(space[name], type):
                self.library_classes.append(space[name])

    def look_at_libraries(self) -> None:
        """What code may find in modules and classes of libraries, once all of it is known."""
        visit_annotations(self, self._own, self.names)
        for asked in settings_asked(self.names, self.of_gradients):
            self.state(asked)
            self.asks_mode = self.asks_mode or getattr(asked, "__name__", "") == "is_grad_enabled"
        for table in tables_asked(self.names):
            self.visit(table)
        for path in open_files() if not _BY_DESCRIPTOR.isdisjoint(self.names) else ():
            self.files.note(path)
        known: tuple[int, int, int] | None = None
        while known != (known := (len(self._modules), len(self._inner_modules), len(self.names))):
            modules = [*self._modules, *self._inner_modules.values()]
            if len(modules) * len(self.names) > _MOST_LOOKED_UP:
                return self.hide("its code may come to too many modules")
            for module in modules:
                self._names_in(module, set(self.names))
        if reason := not_to_be_watched(self.names, self._shared):
            self.hide(reason)
        for module in self._modules:
            if code.is_library_module(module.__name__):
                for name in self._set - vars(module).keys():  # a counter, say, that is put there
                    self.watch.fixed(vars(module), name)
        bases = list(dict.fromkeys(chain.from_iterable(kind.__mro__ for kind in self.library_classes)))
        if registered := Registered([*bases, *(each for each in self._own if isinstance(each, type))]):
            self.state(registered)
        for base in bases:
            if base.__flags__ & MADE_ON_THE_HEAP:
                space = vars(base)
                for name in sorted(_may_be_called(space) | self.names | _BY_OPERATORS):
                    self.watch.fixed(space, name)


def _may_be_called(space: Mapping[str, Any]) -> set[str]:
    return {name for name, value in space.items() if callable(value) or isinstance(value, _CALLED)}


def _is_programs_own(module: types.ModuleType, thing: Any) -> bool:
    """Whether it may have been put into a library's module by the program: a function that is neither a library's nor
    ours, an object of the program's, or what can hold such a thing."""
    if is_ours(thing):
        return False
    if isinstance(thing, types.FunctionType):
        return not code.is_library_code(thing.__code__)
    if isinstance(thing, types.ModuleType):
        return False
    if module is sys:  # whose own lists are of modules and of what is imported
        return thing is sys.argv
    kind = thing if isinstance(thing, type) else type(thing)
    if code.is_of_cython(kind.__module__):  # a compiled function, `numpy.random.default_rng` say
        return not code.is_library_module(str(getattr(thing, "__module__", "")))
    if isinstance(thing, getattr(sys.modules.get("torch"), "Tensor", ())):
        return True
    if module is builtins:
        if isinstance(thing, (str, bytes, int, float, complex)):  # a file's name, say: Python has but `__debug__`
            return True
        return kind.__module__ != "builtins" or kind in _HOLDS or isinstance(thing, BaseException)
    return issubclass(kind, _HOLDS) or not code.is_library_module(kind.__module__)


# What libraries themselves put into their modules is walked through where it is one of these, to no harm.
_HOLDS: tuple[type, ...] = (list, tuple, dict, set, bytearray, types.SimpleNamespace, np.ndarray, np.random.Generator)
_HOLDS += (collections.deque, collections.UserList, collections.UserDict, collections.ChainMap)
