"""Finds how far into a method its first half goes, and proves that the two halves make the very same samples.

Everything is found by trying, in a forked process: where in its body the method draws, what the part before that
reads of its object, and whether the rest, given the part's values back from bytes, makes the very same sample.
"""

from __future__ import annotations

import ast
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from overdrive.changes.fingerprint import of_objects
from overdrive.core.progress import log, progress
from overdrive.datacache.draws import Draws, Generators
from overdrive.datacache.encoding import encode
from overdrive.datacache.forms import Bytes, Ragged, literal
from overdrive.datacache.opened import Opened
from overdrive.datacache.sameness import same
from overdrive.datacache.source import Source, spread
from overdrive.forks.effects import only_reading
from overdrive.forks.forked import Tick, in_child
from overdrive.forks.layout import Unfit
from overdrive.techniques.data.prefix_cache.cut import CutPoint, Cuttable
from overdrive.techniques.data.prefix_cache.finding import SAMPLES, SEEDS, Method, entered
from overdrive.techniques.data.prefix_cache.guard import Reached, guarded
from overdrive.techniques.data.prefix_cache.prefix import Odd, Prefix
from overdrive.techniques.data.prefix_cache.recall import Recall
from overdrive.techniques.data.prefix_cache.sequence import Chain, ListPlace, Strayed, find_chain

# Samples that are fetched for the first time, which a data set with a memory would remember.
_FRESH = 3
# Places from the last possible one backwards whose values are tried.
_PLACES_TRIED = 16
# Samples that are tried where an earlier run has found out all else.
_LOOKED_AT = 4
# Reading a row and making values of it takes about this long.
_WORTH_SECONDS = 15e-6


def find_prefix(method: Method, source: Source, generators: Generators, recall: Recall) -> Prefix:
    """The longest first half of the method that can be kept.

    Raises:
        Unfit: there is none that is worth it, with the reason.
    """
    cuttable = Cuttable(method.function)
    count = len(source.dataset)
    examine = partial(_Examination, method, cuttable, source, generators)
    before = recall.found_before()
    if before is not None:
        try:
            in_child(lambda tick: examine(tick).again(before), lambda _: progress(0, count))
            return _prefix_as(before, method, cuttable)
        except Unfit as error:
            log.info("where a method was cut in an earlier run does not hold any more: %s", error)
    told = in_child(lambda tick: examine(tick).whole(), lambda _: progress(0, count))
    recall.learnt(told)
    return _prefix_as(told, method, cuttable)


def _prefix_as(told: dict[str, Any], method: Method, cuttable: Cuttable) -> Prefix:
    names = None if told["names"] is None else frozenset(told["names"])
    halves = cuttable.at(CutPoint(told["statement"], told["operations"]))
    chain = None
    if told["chain"]:
        path, name, live, moved = told["chain"]
        chain = Chain(method.owner, ListPlace(tuple(path), name), live, moved, method.name)
    form = Ragged(*told["ragged"]) if told["ragged"] else ast.literal_eval(told["form"])
    return Prefix(method, halves, names, form, chain)


class _Examination:
    """Of one method, in the forked process."""

    def __init__(self, method: Method, cuttable: Cuttable, source: Source, generators: Generators, tick: Tick) -> None:
        self.method = method
        self.cuttable = cuttable
        self.source = source
        self.tick = tick
        self.indices = [method.kind(each) for each in spread(len(method.owner), SAMPLES)]
        self.generators = entered(source, generators)

    def again(self, told: dict[str, Any]) -> None:
        """Try a few samples only, under what an earlier run found.

        Raises:
            Unfit: it does not hold any more.
        """
        prefix = _prefix_as(told, self.method, self.cuttable)
        count = len(self.method.owner)
        chosen = random.Random(time.time_ns()).sample(range(count), min(_LOOKED_AT, count))
        with only_reading():
            self._compare(prefix, list(map(self.method.kind, chosen)), SEEDS[:1])

    def whole(self) -> dict[str, Any]:
        with only_reading(), Opened() as opened:
            return {**self._find(), "opened": sorted(opened.paths())}

    def _find(self) -> dict[str, Any]:
        last = self._last_place()
        reasons = []
        places = self.cuttable.places[max(0, last + 1 - _PLACES_TRIED) : last + 1][::-1]
        tries: list[tuple[CutPoint, Chain | None]] = [(place, None) for place in places]
        if longer := self._chain_at(places[0]):
            tries.insert(0, (places[0], longer))
        for place, chain in tries:
            try:
                prefix, seconds = self._learn(place, chain)
                if seconds < _WORTH_SECONDS:
                    raise Unfit(f"what comes before the first random draw takes only {seconds * 1e6:.0f} µs")
                self._verify(prefix)
            except Unfit as error:
                reasons.append(str(error))
                continue
            except Odd as error:  # one that was made before is made in another way the next time, say
                reasons.append(f"its samples are not all made in one way ({error})")
                continue
            return {
                "statement": place.statement,
                "operations": place.operations,
                "names": None if prefix.names is None else sorted(prefix.names),
                "form": literal(prefix.even),
                "ragged": [prefix.form.room, prefix.form.mean] if isinstance(prefix.form, Ragged) else None,
                "chain": [list(chain.place.path), chain.place.name, chain.live, chain.moved] if chain else None,
            }
        raise Unfit(reasons[0] if reasons else "it draws before it does anything")

    def _last_place(self) -> int:
        """The last place that no run had drawn before."""
        method, last = self.cuttable.marked(), len(self.cuttable.places) - 1
        for seed in SEEDS:
            for index in self.indices:
                self.generators.reseed(seed + 31 * int(index))
                start = self.generators.now()
                reached: list[int] = []
                method(self.method.owner, index, self._noting(start, reached))
                if not start.same(self.generators.now()):
                    last = min(last, reached[-1])
                self.tick(1)
        return last

    def _noting(self, start: Draws, reached: list[int]) -> Callable[[int], None]:
        def mark(place: int) -> None:
            if start.same(self.generators.now()):
                reached.append(place)

        return mark

    def _chain_at(self, place: CutPoint) -> Chain | None:
        """The transforms after this place that can be done beforehand, if there are some."""
        halves = self.cuttable.at(place)
        prefix = Prefix(self.method, halves, None, None)

        def runs() -> Iterator[Any]:
            for seed in SEEDS[:2]:
                for index in self.indices:
                    values = prefix.begin(index)
                    self.generators.reseed(seed + 31 * int(index))
                    yield values, lambda stand_in: halves.second(stand_in, index, *values)  # noqa: B023
                    self.tick(1)

        name = self.method.name
        found = find_chain(self.method.owner, halves.live, self.generators, name, runs)
        return Chain(self.method.owner, *found, name) if found else None

    def _learn(self, place: CutPoint, chain: Chain | None) -> tuple[Prefix, float]:
        """What the half up to this place reads and gives, and how long it takes."""
        owner, halves = self.method.owner, self.cuttable.at(place)
        seen: set[str] = set()
        names: frozenset[str] | None = None
        prefix = Prefix(self.method, halves, None, None, chain)
        try:
            prefix.guard = guarded(owner, seen.add)
            names = frozenset()
        except Unfit:
            prefix.guard = owner
        encoded, shortest = [], float("inf")
        for index in self.indices:
            began = time.perf_counter()
            try:
                values = prefix.begin(index)
            except (Reached, Odd) as error:
                raise Unfit(f"before its first random draw {error}") from None
            shortest = min(shortest, time.perf_counter() - began)
            encoded.append(encode(values))
            self.tick(1)
        form = encoded[0][0]
        if any(each != form for each, _ in encoded):
            form = Ragged.of(encoded)
        if names is not None:
            names = None if "__dict__" in seen else frozenset(seen)
        return Prefix(self.method, halves, names, form, chain), shortest

    def _verify(self, prefix: Prefix) -> None:
        before = of_objects(*prefix.roots)
        known = set(map(int, self.indices))
        for index in [each for each in range(len(self.method.owner)) if each not in known][:_FRESH]:
            with contextlib.suppress(Exception, Reached):  # such as a damaged file
                prefix.begin(self.method.kind(index))
        self._compare(prefix, self.indices, SEEDS)
        if of_objects(*prefix.roots) != before:
            raise Unfit("fetching a sample changes what the part before its first random draw depends on")
        self._check_memory(prefix)

    def _compare(self, prefix: Prefix, indices: list[Any], seeds: Sequence[int]) -> None:
        """Make these samples in both ways."""
        for number, index in enumerate(indices):
            rows = set()
            for seed in seeds:
                real, end = self._real(index, seed + number)
                row = self._begun(prefix, index, seed + 1000)
                rows.add(row.tobytes())
                self.generators.reseed(seed + number)
                try:
                    made = prefix.finish(self.method.owner, index, prefix.unpack(row))
                except Strayed:
                    raise Unfit("its samples do not all go through the list of transforms") from None
                if not same(real, made):
                    raise Unfit("its samples, made in two halves, are not the same in every bit")
                if not end.same(self.generators.now()):
                    raise Unfit("made in two halves, its samples draw other random numbers")
                self.tick(1)
            if len(rows) > 1:
                raise Unfit("what it has before its first random draw changes from fetch to fetch")

    def _real(self, index: Any, seed: int) -> tuple[Any, Draws]:
        self.generators.reseed(seed)
        return self.method.function(self.method.owner, index), self.generators.now()

    def _begun(self, prefix: Prefix, index: Any, seed: int) -> Bytes:
        self.generators.reseed(seed)
        start = self.generators.now()
        try:
            row = prefix.encoded(index)
        except Odd as error:
            raise Unfit(f"before its first random draw {error}") from None
        if not start.same(self.generators.now()):
            raise Unfit("it draws random numbers before the cut")
        return row

    def _check_memory(self, prefix: Prefix) -> None:
        """A value in the data set's own memory is a copy afterwards, which a batch in that memory would show."""
        held = [prefix.begin(self.indices[0]) for _ in range(2)]
        if _places(held[0]) & _places(held[1]):
            batches = [self.source.fetch([0]) for _ in range(2)]
            if _places(batches[0]) & _places(batches[1]):
                raise Unfit("its batches share memory with the data set")


def _places(thing: Any) -> set[int]:
    """Where the arrays and tensors in a value begin."""
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        return set().union(*map(_places, thing)) if thing else set()
    if isinstance(thing, np.ndarray):
        return {int(thing.__array_interface__["data"][0])}
    return {int(thing.data_ptr())} if hasattr(thing, "data_ptr") else set()
