"""All that calls of modules may read or change of Python's: attributes, containers, globals, closures, generators.

Code is followed by the names that it uses: a method that no code names is not looked at.
"""

from __future__ import annotations

import collections
import functools
import gc
import io
import logging
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from overdrive.changes import code
from overdrive.changes.state import slots_of
from overdrive.model_state.known_code import ASIDE, CLASS_NOISE, COMPUTES, MAKERS, OF_SYS, OUTWARD, VALUES
from overdrive.seams.keras.layers_on_torch import trainers_own
from overdrive.seams.torch.modules import tensors_in

_MOST_OBJECTS = 50_000
_LARGEST_ARRAY = 1 << 20  # bytes; its content is compared before each call
_MADE_BY_PYTHON = 1 << 9  # flag of a class that was not made by C once and for all
# Marks that are told by their identity, and locks, which a call gives back as it found them.
_WITHOUT_STATE = (object, type(threading.Lock()), type(threading.RLock()))
_CALLED = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


class Reach:
    """
    Attributes:
        hidden: why there may be more than can be seen, in words; empty where all is seen.
        outward: what the code may do besides computing (a file, the clock), in words; empty where it does not.
        prints: whether it may print, or tell a logger.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.hidden = self.outward = ""
        self.prints = False
        self.spaces: list[tuple[Any, dict[str, Any]]] = []  # objects with their attributes
        self.containers: list[Any] = []  # dicts, lists, sets, deques, bytearrays
        self.classes: list[type] = []  # of the program's
        self.slots: list[tuple[Any, str]] = []
        self.names: list[tuple[dict[str, Any], str]] = []  # globals that functions read, whether they are there or not
        self.cells: list[types.CellType] = []
        self.arrays: list[Any] = []
        self.generators: list[Any] = []
        self.loggers: list[logging.Logger] = []
        self.modules: list[torch.nn.Module] = []
        self.tensors: list[torch.Tensor] = []  # those that are no parameters or buffers of these modules
        self._seen: dict[int, Any] = {id(each): each for each in _GLOBAL_GENERATORS}
        self._used = {"forward"}  # names, in code
        self._not_used: dict[str, list[Any]] = {}  # methods, by name
        self._apart: list[tuple[dict[str, Any], frozenset[str]]] = []  # attributes of models of Keras, and trainer's
        self._waiting: list[Any] = list(roots)
        while self._waiting:
            self._visit(self._waiting.pop())
            if len(self._seen) > _MOST_OBJECTS:
                self._hide("too many objects")
                break
        # What their calls may come to set.
        self.names += [(space, name) for space, _ in self._apart for name in self._used if name not in space]
        owned = {id(each) for module in self.modules for each in tensors_in(module)}
        self.tensors = [each for each in self.tensors if id(each) not in owned]
        self._seen.clear()

    def _visit(self, thing: Any) -> None:
        if isinstance(thing, VALUES) or id(thing) in self._seen or _is_ours(thing):
            return
        self._seen[id(thing)] = thing
        for base, visit in _VISITORS:
            if isinstance(thing, base):
                visit(self, thing)
                return
        self._instance(thing)

    def _container(self, thing: Any) -> None:
        if not isinstance(thing, (tuple, frozenset)):
            self.containers.append(thing)
        if isinstance(thing, dict):
            self._waiting += dict.keys(thing)
            self._waiting += dict.values(thing)
        elif not isinstance(thing, bytearray):
            self._waiting.extend(thing)  # not `+=`, which a list of the program's own kind may answer (pandas)
        if type(thing) is not collections.OrderedDict and hasattr(thing, "__dict__"):
            self._space(thing)

    def _space(self, thing: Any) -> None:
        self.spaces.append((thing, vars(thing)))
        self._waiting += vars(thing).values()
        self._kind(type(thing))

    def _module(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self._hide("a TorchScript module")
        else:
            self.modules.append(module)
            if own := trainers_own(module):
                self._model_of_keras(module, own)
            else:
                self._space(module)

    def _model_of_keras(self, module: torch.nn.Module, trainers: frozenset[str]) -> None:
        """`trainers`: what is the trainer's of its attributes, which are looked at where code uses them."""
        space = vars(module)
        self._apart.append((space, trainers))
        for name in space.keys() - (trainers - self._used):
            self._name(space, name)
        self._kind(type(module))

    def _array(self, array: Any) -> None:
        if array.dtype.hasobject or array.nbytes > _LARGEST_ARRAY or isinstance(array, np.memmap):
            self._hide("a large or mapped array, or one of objects")
        else:
            self.arrays.append(array)

    def _logger(self, logger: logging.Logger) -> None:
        self.loggers.append(logger)
        self.prints = True

    def _python_module(self, module: types.ModuleType, names: set[str] | None = None) -> None:
        """`names`: those that code uses; without them it may be any."""
        top = _top(module.__name__)
        if top in COMPUTES or (module is sys and names is not None and vars(sys).keys() & names <= OF_SYS):
            return
        if top in sys.stdlib_module_names:
            self.outward = self.outward or f"the module {module.__name__}"
            return
        space = vars(module)
        for name in tuple(space) if names is None else space.keys() & names:
            self._name(space, name)

    def _name(self, space: dict[str, Any], name: str) -> None:
        self.names.append((space, name))
        if name in space:
            self._waiting.append(space[name])

    def _function(self, function: types.FunctionType) -> None:
        self._waiting += (function.__defaults__, function.__kwdefaults__, function.__dict__)
        for cell in function.__closure__ or ():
            try:
                self._waiting.append(cell.cell_contents)
                self.cells.append(cell)
            except ValueError:
                self._hide("a closure that is not filled yet")
        if _top(function.__module__) in COMPUTES:
            return
        (names, told, read), space = _names_in(function.__code__), function.__globals__
        self._use(names | told)
        for name in read:
            if name not in space and name in OUTWARD:
                self.outward = self.outward or f"{name}()"
            self.prints |= name == "print"
            if isinstance(space.get(name), types.ModuleType):
                self.names.append((space, name))
                self._python_module(space[name], names)
            else:
                self._name(space, name)
        for name in code.modules_imported(function.__code__, str(space.get("__package__") or "")):
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                self._python_module(module, names)

    def _use(self, names: set[str]) -> None:
        for name in names - self._used:
            self._used.add(name)
            self._waiting += self._not_used.pop(name, ())
            for space, trainers in self._apart:
                if name in trainers and name in space:
                    self._name(space, name)

    def _of_c(self, method: types.BuiltinMethodType) -> None:
        """A function's own is its module, or with pybind11, as in most of `torch._C`, a record of how it is called."""
        own = method.__self__
        if not isinstance(own, (types.ModuleType, type)) and type(own).__module__ != "pybind11_builtins":
            self._waiting.append(own)

    def _class(self, kind: type) -> None:
        """A class that code may make objects of."""
        self._kind(kind)
        if _top(kind.__module__) not in COMPUTES:
            self._waiting += [vars(kind)[name] for name in MAKERS if name in vars(kind)]

    def _kind(self, kind: type) -> None:
        """The class of an object."""
        if kind in self.classes:
            return
        for base in kind.__mro__:
            if _top(base.__module__) in COMPUTES or not base.__flags__ & _MADE_BY_PYTHON or base in self.classes:
                continue
            self.classes.append(base)
            for name, value in vars(base).items():
                if name in CLASS_NOISE:
                    continue
                by_itself = name.startswith("__") and name.endswith("__") and name not in ASIDE
                if name in self._used or by_itself or not isinstance(value, _CALLED):
                    self._waiting.append(value)
                else:
                    self._not_used.setdefault(name, []).append(value)

    def _instance(self, thing: Any) -> None:
        kind = type(thing)
        if kind in _WITHOUT_STATE:
            return
        try:
            # It refuses what has a state of C's that it cannot see. Keras's objects would be written as files are.
            if _top(getattr(kind.__reduce__, "__module__", "")) != "keras":
                object.__reduce_ex__(thing, 4)
        except Exception:
            self._hide(f"a {kind.__qualname__}")
            return
        slots = slots_of(thing, kind)
        if isinstance(getattr(thing, "__dict__", None), dict):
            self._space(thing)
        elif slots or kind.__flags__ & _MADE_BY_PYTHON:
            self._kind(kind)
        else:
            self._hide(f"a {kind.__qualname__}")
        for name, value in slots:
            self.slots.append((thing, name))
            self._waiting.append(value)

    def _hide(self, what: str) -> None:
        self.hidden = self.hidden or what


@functools.lru_cache(4096)
def _names_in(each: types.CodeType) -> tuple[set[str], set[str], set[str]]:
    """All names, texts that may be names, and names of globals."""
    return code.names_of(each), code.globals_told(each), code.globals_read(each)


def _is_ours(thing: Any) -> bool:
    """A function, class or object of Overdrive's own."""
    kind = thing if isinstance(thing, (type, types.FunctionType)) else type(thing)
    return _top(kind.__module__) == "overdrive"


def _top(name: str | None) -> str:
    return (name or "").split(".")[0]


def _then(*names: str) -> Callable[[Reach, Any], None]:
    return lambda reach, thing: reach._waiting.extend(getattr(thing, name) for name in names)


# Who calls a module keeps the states of these himself.
_GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand, torch.default_generator)
_VISITORS: tuple[tuple[Any, Callable[[Reach, Any], None]], ...] = (
    (torch.nn.Module, Reach._module),
    (torch.Tensor, lambda reach, thing: reach.tensors.append(thing)),
    ((dict, list, tuple, set, frozenset, collections.deque, bytearray), Reach._container),
    (types.FunctionType, Reach._function),
    (types.MethodType, _then("__self__", "__func__")),
    (types.BuiltinMethodType, Reach._of_c),
    (type, Reach._class),
    (types.ModuleType, Reach._python_module),
    (np.ndarray, Reach._array),
    (
        (torch.Generator, np.random.Generator, np.random.RandomState, random.Random),
        lambda reach, thing: reach.generators.append(thing),
    ),
    (logging.Logger, Reach._logger),
    (io.IOBase, lambda reach, thing: reach._hide("an open file")),
    (functools.partial, _then("func", "args", "keywords")),
    (property, _then("fget", "fset", "fdel")),
    ((staticmethod, classmethod), _then("__func__")),
    (functools.cached_property, _then("func")),
    (type(functools.cache(lambda: None)), _then("__wrapped__")),
    (types.MappingProxyType, lambda reach, thing: reach._waiting.extend(gc.get_referents(thing))),
)
