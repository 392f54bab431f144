"""Finds out, in a forked process, whether a loader's next batches may be made in one."""

from __future__ import annotations

from typing import Any

from overdrive.datacache.effects import only_reading
from overdrive.datacache.fingerprint import Fingerprint, fingerprint
from overdrive.datacache.forked import Tick, in_child
from overdrive.datacache.layout import Unfit
from overdrive.datacache.randomness import reseed
from overdrive.techniques.data.prefetch import generators
from overdrive.techniques.data.prefetch.parcel import Parcel, pack

_BATCHES = 3
_SAMPLES = 8  # of each batch: whole ones of images take seconds


def try_out(iterator: Any) -> Fingerprint:
    """What the data set is, once it has been seen that fetching leaves it so. Drawing random numbers is allowed.

    Raises:
        Unfit: fetching changes it, or gives other samples each time, or what cannot be handed over.
    """
    roots = roots_of(iterator)
    seen = look(roots)
    in_child(lambda tick: _examine(iterator, roots, seen.digest, tick))
    return seen


def roots_of(iterator: Any) -> tuple[Any, Any]:
    return iterator._dataset, iterator._collate_fn


def look(roots: tuple[Any, Any]) -> Fingerprint:
    """
    Raises:
        Unfit: a change of it might not be seen.
    """
    seen = fingerprint(*roots)
    if seen.hidden_here is not None:
        raise Unfit(f"changes of its data set might not be seen: {seen.hidden_here}")
    seen.watch.seal()
    return seen


def _examine(iterator: Any, roots: tuple[Any, Any], digest: str, tick: Tick) -> None:
    with only_reading():
        indices = _indices(iterator)
        reseed(1)
        begun = generators.states()
        first = _fetch(iterator, indices, tick)
        ended = generators.states()
        drawn = generators.drawn_from(begun, ended)

        reseed(2)  # those that it does not draw from must not matter
        for name in drawn:
            generators.restore(name, begun[name])
        second = _fetch(iterator, indices, tick)
    if fingerprint(*roots).digest != digest:
        raise Unfit("fetching a sample changes the data set")
    if any(generators.state(name) != ended[name] for name in drawn):
        raise Unfit("its samples draw other random numbers from fetch to fetch")
    for one, other in zip(first, second, strict=True):
        if not one.same(other):
            raise Unfit("its samples change from fetch to fetch")
        if one.places() & other.places():
            raise Unfit("its batches share memory with the data set")


def _indices(iterator: Any) -> list[Any]:
    indices = []
    for _ in range(_BATCHES):
        try:
            index = iterator._next_index()
        except StopIteration:
            break
        indices.append(index[:_SAMPLES] if type(index) is list else index)
    return indices


def _fetch(iterator: Any, indices: list[Any], tick: Tick) -> list[Parcel]:
    parcels = []
    for index in indices:
        parcels.append(pack(iterator._dataset_fetcher.fetch(index)))
        tick(1)
    return parcels
