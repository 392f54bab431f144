"""All random generators that a data set may draw from: the global ones, and those it holds itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from overdrive.changes import code
from overdrive.changes.generators import frozen, seed_generator, set_state, state_of
from overdrive.changes.state import PLAIN, slots_of
from overdrive.core.in_place import STANDS_FOR, InPlace
from overdrive.core.rng import States, reseed

# Looking through this many objects takes 0.1 s; a list of as many paths is looked through, not followed.
_MOST_OBJECTS = 200_000
# They hold nothing that draws or fetches. A list of 50,000 paths, each with its parts, took 1.5 s.
_LEAVES = (type, ModuleType, np.ndarray, PurePath, InPlace)


class Generators:
    """The global generators and those that were found among the objects of a data set."""

    def __init__(self, own: Iterable[Any] = ()) -> None:
        self.own = list(own)

    def now(self) -> Draws:
        return Draws(States.now(), [(each, state_of(each)) for each in self.own])

    def reseed(self, seed: int) -> None:
        """Put all of them into another state; in a forked process only."""
        reseed(seed)
        for number, each in enumerate(self.own):
            seed_generator(each, seed * 1000 + number)


@dataclass
class Draws:
    """What all generators were at one moment."""

    states: States
    own: list[tuple[Any, Any]]

    def same(self, other: Draws) -> bool:
        if self.own or other.own:
            mine, others = ([frozen(state) for _, state in each.own] for each in (self, other))
            if mine != others:
                return False
        return self.states.same(other.states)

    def restore(self) -> None:
        self.states.restore()
        for generator, state in self.own:
            set_state(generator, state)


def reachable(root: Any, most: int = _MOST_OBJECTS) -> Iterator[Any]:
    """The objects that a data set is built of, itself first; modules, classes and plain values left out."""
    seen: set[int] = set()
    methods: dict[type, list[Any] | None] = {}  # of each class, looked up once: 50,000 pairs took 0.25 s, now 0.03
    pending = [root]
    while pending and len(seen) < most:
        thing = pending.pop()
        if type(thing) is FunctionType:
            thing = getattr(thing, STANDS_FOR, thing)
        kind = type(thing)
        if kind in PLAIN or id(thing) in seen:
            continue
        if kind not in methods:
            methods[kind] = _methods_of(kind)
        own = methods[kind]
        if own is None:
            continue
        seen.add(id(thing))
        yield thing
        if kind is tuple or kind is list:
            pending += [each for each in thing if type(each) not in PLAIN]
        else:
            pending += own
            pending += _parts(thing, kind)


def _methods_of(kind: type) -> list[Any] | None:
    """The program's own functions in a class, which may hold what draws; None for a leaf."""
    if issubclass(kind, _LEAVES):
        return None
    if issubclass(kind, _kinds()) or code.is_library_module(kind.__module__):
        return []
    bases = [base for base in kind.__mro__[:-1] if not code.is_library_module(base.__module__)]
    return [each for base in bases for each in vars(base).values() if isinstance(each, FunctionType)]


def _parts(thing: Any, kind: type) -> list[Any]:
    if isinstance(thing, FunctionType):
        return _parts_of_function(thing)
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts += [value for value in thing.values() if type(value) not in PLAIN]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        parts += [each for each in thing if type(each) not in PLAIN]
    space = getattr(thing, "__dict__", None)
    if isinstance(space, dict):
        parts += space.values()
    try:
        parts += [value for _, value in slots_of(thing, kind)]
    except Exception:  # an odd descriptor
        return parts
    return parts


def _parts_of_function(function: FunctionType) -> list[Any]:
    if code.is_library_code(function.__code__):
        return []
    space = function.__globals__
    parts = [space[name] for name in code.globals_read(function.__code__) if name in space]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:
            continue
    return [*parts, *(function.__defaults__ or ())]


@dataclass(frozen=True)
class WalkContents:
    """What one walk through a data set came upon."""

    objects: list[Any]
    generators: Generators


def contents_of(root: Any, most: int = _MOST_OBJECTS) -> WalkContents:
    kinds = _kinds()
    shared = (random._inst, np.random.mtrand._rand, getattr(sys.modules.get("torch"), "default_generator", None))
    objects = list(reachable(root, most))
    drawing = {kind for kind in set(map(type, objects)) if issubclass(kind, kinds)}
    own = [each for each in objects if type(each) in drawing and not any(each is one for one in shared)]
    return WalkContents(objects, Generators(own))


def _kinds() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    kinds: tuple[Any, ...] = (random.Random, np.random.Generator, np.random.RandomState)
    return (*kinds, torch.Generator) if torch is not None else kinds
