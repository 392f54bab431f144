"""Finds the method of a data set in which a sample's first random draw happens, by watching samples being fetched."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from overdrive.core.in_place import STANDS_FOR
from overdrive.core.progress import progress
from overdrive.datacache.draws import Draws, Generators, WalkContents, contents_of
from overdrive.datacache.source import Source, spread, start_method
from overdrive.forks.effects import only_reading
from overdrive.forks.forked import Tick, in_child
from overdrive.forks.layout import Unfit
from overdrive.seams.torch.iterators import init_of_program

SAMPLES = 12  # that are tried
SEEDS = (11, 12, 13)
_KINDS: dict[str, type] = {"int": int, "int64": np.int64}


@dataclass(frozen=True)
class Method:
    """A method that was seen to fetch one sample by its number, of one object."""

    owner: Any
    base: type  # the class that defines it
    name: str
    kind: type  # of the number

    @property
    def function(self) -> Any:
        found = vars(self.base)[self.name]
        return getattr(found, STANDS_FOR, found)


class Paused:
    """Whether our own methods stand aside: where a forked process looks at the program's."""

    now = False


def source_of(loader: Any) -> Source:
    """What the loader fetches its samples from.

    Raises:
        Unfit: as can be told without fetching any, nothing of them can be kept.
    """
    from torch.utils.data import IterableDataset

    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise Unfit("its data set is a stream, which has no samples by number")
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise Unfit("its data set has no length or no samples by number")
    if len(dataset) == 0:
        raise Unfit("its data set is empty")
    if loader.num_workers > 0 and start_method(loader) != "fork":
        raise Unfit("its workers are not forked, so that they share no memory with us")
    workers = int(loader.num_workers)
    return Source(dataset, loader.collate_fn, workers, init_of_program(loader), 16)


def find_methods(source: Source, contents: WalkContents) -> list[list[Method]]:
    """The methods in which a sample's first draw happens, for each object that fetches: the innermost first.

    Raises:
        Unfit: there is none, with the reason.
    """
    objects = {id(each): each for each in contents.objects}
    trace = partial(_trace, source, set(objects), contents.generators)
    told = in_child(trace, lambda _: progress(0, len(source.dataset)))
    chains: dict[int, list[Method]] = {}
    for chain in told["chains"]:
        methods = []
        for place, base, name, kind in chain:
            owner = objects[place]
            methods.append(Method(owner, type(owner).__mro__[base], name, _KINDS[kind]))
        if methods:
            chains.setdefault(id(methods[0].owner), methods)
    if not told["drew"]:
        raise Unfit("it draws no random numbers: sample_cache keeps its samples whole")
    if not chains:
        raise Unfit("no method that fetches one sample by its number draws its random numbers")
    return list(chains.values())


def entered(source: Source, generators: Generators) -> Generators:
    """Make this forked process the loader's first worker; returns its generators, to which a `worker_init_fn` may
    have added."""
    Paused.now = True
    source.enter_worker(0)
    return contents_of(source.dataset).generators if source.prepare_worker is not None else generators


@only_reading()
def _trace(source: Source, objects: set[int], generators: Generators, tick: Tick) -> dict[str, Any]:
    """Runs in the forked process."""
    generators = entered(source, generators)
    drew, chains = False, []
    indices = spread(len(source.dataset), SAMPLES)
    for seed in SEEDS[:2]:
        for index in indices:
            generators.reseed(seed * 7919 + index)
            start = generators.now()
            seen: list[Any] = []
            sys.setprofile(_Tracer(objects, generators, start, seen))
            try:
                _fetch(source.dataset, index)
            finally:
                sys.setprofile(None)
            drew = drew or not start.same(generators.now())
            chains.append(seen)
            tick(1)
    return {"drew": drew, "chains": chains}


def _fetch(dataset: Any, index: int) -> Any:
    many = getattr(dataset, "__getitems__", None)
    return many([index])[0] if many else dataset[index]


class _Tracer:
    """A profile function: notes each method call (object, number) that begins before the first draw and ends
    after it."""

    def __init__(self, objects: set[int], generators: Generators, start: Draws, seen: list[Any]) -> None:
        self._objects = objects
        self._generators = generators
        self._start = start
        self._seen = seen
        self._open: list[tuple[Any, Any]] = []

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            call = self._call_of(frame)
            if call is not None and self._start.same(self._generators.now()):
                self._open.append((frame, call))
        elif event == "return" and self._open and self._open[-1][0] is frame:
            _, call = self._open.pop()
            if not self._start.same(self._generators.now()):
                self._seen.append(call)

    def _call_of(self, frame: Any) -> Any:
        code: CodeType = frame.f_code
        if code.co_argcount != 2 or code.co_kwonlyargcount:
            return None
        values = frame.f_locals
        owner: Any = values.get(code.co_varnames[0])
        index: Any = values.get(code.co_varnames[1])
        kind = type(index).__name__
        known = id(owner) in self._objects and _KINDS.get(kind) is type(index)
        if not known or not hasattr(owner, "__len__"):
            return None
        for number, base in enumerate(type(owner).__mro__):
            found: Any = vars(base).get(str(code.co_name))
            if getattr(getattr(found, STANDS_FOR, found), "__code__", None) is code:
                return (id(owner), number, code.co_name, kind) if 0 <= index < len(owner) else None
        return None
