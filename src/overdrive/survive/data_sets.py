"""What data sets hold beside their samples: places in files, counts, lists of their own.

A run that is made again leaves out most fetches. Whether these would have changed a data set shows by what it holds at
the snapshot's step. Numbers of tensors and states of generators do not count: they are put back.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import operator
import os
import posix
import random
import re
import types
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overdrive.changes.generators import state_of
from overdrive.core.in_place import InPlace
from overdrive.survive.names import attributes, content_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SKIPPED = (
    types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.BuiltinMethodType, weakref.ref, type,
    types.WrapperDescriptorType, types.MethodDescriptorType, InPlace, torch.Tensor, torch.dtype, torch.device,
)  # fmt: skip
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
# Of these libraries' C types each takes samples by their number, or keeps no place.
_BY_NUMBER = (
    "_thread", "array", "builtins", "collections", "datetime", "decimal", "functools", "h5py", "lmdb", "numpy",
    "pandas", "PIL", "pyarrow", "re", "scipy", "sqlite3", "tokenizers", "torch", "zlib",
)  # fmt: skip
_ENDS = 100  # elements of a long list that are looked at from each end
_MOST = 20_000  # things in all
_MOST_HASHED = 1 << 20


def digest_of(data_sets: list[Any], with_generators: bool = False) -> str | None:
    """None where one holds something whose place in its samples nobody can tell: a stream, say.

    Args:
        with_generators: their states count as well: nobody puts them back.
    """
    walk = _Walk(with_generators)
    for each in data_sets:
        walk.add(each)
    return walk.run()


class _Walk:
    def __init__(self, with_generators: bool) -> None:
        self._with_generators = with_generators
        self._digest = hashlib.sha256()
        self._waiting: list[Any] = []
        self._elements: list[Any] = []  # of lists, which are samples mostly: they come after all else
        self._kept: dict[int, Any] = {}

    def add(self, thing: Any) -> None:
        self._waiting.append(thing)

    def run(self) -> str | None:
        while (next_ones := self._waiting or self._elements) and len(self._kept) < _MOST:
            if not self._look(next_ones.pop()):
                return None
        return None if self._waiting else self._digest.hexdigest()

    def _fact(self, *facts: Any) -> None:
        self._digest.update(repr(facts).encode(errors="replace"))

    def _look(self, thing: Any) -> bool:
        """Whether it is clear what its place is."""
        kind = type(thing)
        if kind in _PLAIN:
            self._fact(thing)
            return True
        if id(thing) in self._kept:
            return True
        self._kept[id(thing)] = thing
        if isinstance(thing, _SKIPPED):
            return True
        if isinstance(thing, _GENERATORS):
            if self._with_generators:
                self._fact(_told(state_of(thing)))
            return True
        self._fact(kind.__qualname__)
        if isinstance(thing, (np.ndarray, np.generic)):
            self._fact(str(thing.dtype), thing.shape)
            if thing.dtype.hasobject:
                self._some(thing.ravel().tolist())
            elif thing.nbytes <= _MOST_HASHED:
                self._fact(thing.tobytes())
            return True
        if isinstance(thing, types.FunctionType):
            self._waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        elif isinstance(thing, types.MethodType):
            self._waiting += [thing.__self__, thing.__func__]
        elif isinstance(thing, types.CellType):
            self._waiting += content_of(thing)
        elif isinstance(thing, functools.partial):
            self._waiting += [thing.func, thing.args, thing.keywords]
        elif hasattr(kind, "tell"):  # files are iterators, too
            return self._file(thing)
        elif hasattr(kind, "__next__"):
            return self._iterator(thing)
        else:
            return self._instance(thing)
        return True

    def _iterator(self, thing: Any) -> bool:
        if isinstance(thing, (itertools.count, itertools.repeat)):
            self._fact(repr(thing))
            return True
        left = operator.length_hint(thing, -1) if type(thing).__module__ == "builtins" else -1
        self._fact(left)
        return left >= 0

    def _file(self, thing: Any) -> bool:
        try:
            self._fact("closed" if getattr(thing, "closed", False) else thing.tell())
        except Exception:  # a text that is read line by line does not tell
            return False
        return True

    def _instance(self, thing: Any) -> bool:
        kind = type(thing)
        known = True
        if isinstance(thing, dict):
            self._fact(len(thing))
            self._some(list(itertools.islice(thing, 2 * _ENDS)))
            self._some(list(itertools.islice(thing.values(), 2 * _ENDS)))
        elif isinstance(thing, (list, tuple, deque)):
            self._fact(len(thing))
            self._some(thing)
        elif isinstance(thing, (set, frozenset)):
            self._fact(len(thing), sorted(map(repr, thing)) if all(type(each) in _PLAIN for each in thing) else "")
        else:
            known = _is_pythons(kind)
        for name, value in attributes(thing):
            self._fact(name)
            self._waiting.append(value)
        return known or kind.__module__.partition(".")[0] in _BY_NUMBER

    def _some(self, items: Any) -> None:
        chosen = items if len(items) <= 2 * _ENDS else [*itertools.islice(items, _ENDS), *list(items)[-_ENDS:]]
        self._elements += chosen


def _told(state: Any) -> Any:
    """A generator's state, all of it."""
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return [(key, _told(value)) for key, value in state.items()]
    return [_told(each) for each in state] if isinstance(state, tuple) else state


def _is_pythons(kind: type) -> bool:
    """Whether its class was written in Python: then all that it holds are its variables."""
    return any(isinstance(each, types.FunctionType) for base in kind.__mro__ for each in vars(base).values())


def reading(apart: Path) -> list[list[Any]]:
    """Path and position of each file that this process has open to read, but for those of the run's folder. What it has
    written itself lies there while it is made again."""
    found = []
    copies = re.compile(rf"{re.escape(str(apart))}/replay[^/]*/files(?=/)")
    for name in posix.listdir("/proc/self/fd"):
        try:
            path = posix.readlink(f"/proc/self/fd/{name}")
            real = os.path.isfile(path)
            path = copies.sub("", path, count=1)
            reads = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if reads and not path.startswith((f"{apart}/", "/proc/", "/sys/", "/dev/")) and real:
                found.append([path, os.lseek(int(name), 0, os.SEEK_CUR)])
        except OSError:
            continue
    return sorted(found)
