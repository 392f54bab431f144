"""A list of transforms that a sample goes through, of which the first ones can be done beforehand.

The list may be held by any object, under any name: what counts is that its items are seen to be called in
turn, each with the very thing that the one before it returned, and the first with a value of the first half.
The second half then runs on stand-ins for the data set and for what leads to the list. They share all
attributes with the real ones, but show a shorter list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from overdrive.datacache.draws import Draws, Generators
from overdrive.forks.layout import Unfit
from overdrive.techniques.data.prefix_cache.guard import Reached

_DEEPEST = 4
_MOST_LISTS = 50


@dataclass(frozen=True)
class ListPlace:
    """Where the list is: attributes that lead from the data set to its holder, and its own name there."""

    path: tuple[str, ...]
    name: str


class Strayed(Exception):
    """In this case the sample did not go through the list as it did when it was tried."""


class Chain:
    """The first items of a list, done beforehand to the value of the name `live`.

    Raises:
        Unfit: there is no such list.
    """

    def __init__(self, owner: Any, place: ListPlace, live: str, moved: int, again: str) -> None:
        self.place = place
        self.live = live
        self.moved = moved
        self._links = _links(owner, place)
        self._list = self._links[-1][2]
        self._items = _items_of(self._list)
        if not 0 < moved < len(self._items):
            raise Unfit("the list of transforms is another one")
        self.done_before = self._items[:moved]
        self._expected: list[list[Any]] = []  # of each call under way: the value that is to come, and how often it did
        rest = [self._checking(self._items[moved]), *self._items[moved + 1 :]]
        self._stand_in = _standing_in(owner, self._links, rest, again)

    def intact(self) -> bool:
        """Whether the list is still what it was, and where it was."""
        if any(_child(holder, name) is not value for holder, name, value in self._links):
            return False
        now = _items_of(self._list)
        return len(now) == len(self._items) and all(a is b for a, b in zip(now, self._items, strict=True))

    def advance(self, value: Any) -> Any:
        for item in self.done_before:
            value = item(value)
        return value

    def run(self, second: Callable[[Any], Any], value: Any) -> Any:
        """What the second half makes, on the stand-in.

        Raises:
            Strayed: `value` did not come to the list, once and as it is.
        """
        expected = [value, 0]
        self._expected.append(expected)
        try:
            made = second(self._stand_in)
        except (Exception, Reached) as error:
            if expected[1] == 1 and not isinstance(error, Reached):
                raise
            raise Strayed from None
        finally:
            self._expected.pop()
        if expected[1] != 1:
            raise Strayed
        return made

    def _checking(self, item: Any) -> Callable[..., Any]:
        def check(*args: Any, **kwargs: Any) -> Any:
            expected: list[Any] = self._expected[-1] if self._expected else [None, 1]
            right = len(args) == 1 and not kwargs and args[0] is expected[0]
            expected[1] += 1 if right else 2
            return item(*args, **kwargs)

        return check


def find_chain(
    owner: Any,
    live: tuple[str, ...],
    generators: Generators,
    again: str,
    runs: Callable[[], Iterator[tuple[tuple[Any, ...], Callable[[Any], Any]]]],
) -> tuple[ListPlace, str, int] | None:
    """The list of which most can be done beforehand: where it is, the name of the value, how many items.

    Args:
        live: the names of the values of a run.
        again: the method that fetches a sample.
        runs: gives some runs, each as the values at the cut, and the second half as a function of its object,
            after putting the generators into some state.
    """
    best: tuple[ListPlace, str, int] | None = None
    for place in _places(owner):
        try:
            found = _moved(owner, place, live, generators, again, runs)
        except (Exception, Reached):  # it does not work with this one
            continue
        if found is not None and (best is None or found[1] > best[2]):
            best = (place, *found)
    return best


def _moved(owner: Any, place: ListPlace, live: tuple[str, ...], generators: Generators, again: str, runs: Any) -> Any:
    links = _links(owner, place)
    items = _items_of(links[-1][2])
    names, moved = set(live), len(items) - 1
    for values, second in runs():
        calls: list[_Call] = []
        start = generators.now()
        recorders = [_recording(item, number, calls, generators, start) for number, item in enumerate(items)]
        second(_standing_in(owner, links, recorders, again))
        if [call.number for call in calls] != list(range(len(items))):
            return None
        if any(call.given is not before.result for before, call in pairwise(calls)):
            return None
        names &= {name for name, value in zip(live, values, strict=True) if value is calls[0].given}
        moved = min([moved, *(call.number for call in calls if call.drew)])
        if not names or not moved:
            return None
    return min(names), moved


@dataclass
class _Call:
    number: int
    given: Any
    result: Any = None
    drew: bool = False


_NOTHING = object()


def _recording(item: Any, number: int, calls: list[_Call], generators: Generators, start: Draws) -> Any:
    def record(*args: Any, **kwargs: Any) -> Any:
        call = _Call(number, args[0] if len(args) == 1 and not kwargs else _NOTHING)
        calls.append(call)
        call.result = item(*args, **kwargs)
        call.drew = not start.same(generators.now())
        return call.result

    return record


def _places(owner: Any) -> Iterator[ListPlace]:
    """All lists of callables that attributes lead to."""
    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], Any]] = [((), owner)]
    found = 0
    while pending and found < _MOST_LISTS:
        path, thing = pending.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for name, value in _children(thing):
            items = _items_of(value)
            if len(items) > 1 and all(map(callable, items)):
                found += 1
                yield ListPlace(path, name)
            elif len(path) < _DEEPEST and isinstance(getattr(value, "__dict__", None), dict):
                pending.append(((*path, name), value))


def _children(thing: Any) -> list[tuple[str, Any]]:
    space = vars(thing)
    modules = space.get("_modules")
    named = list(modules.items()) if isinstance(modules, dict) and not _is_container(thing) else []
    return [(name, value) for name, value in [*space.items(), *named] if not isinstance(value, type)]


def _is_container(thing: Any) -> bool:
    """nn.Sequential and nn.ModuleList name their modules by number."""
    modules = vars(thing).get("_modules")
    return bool(modules) and isinstance(modules, dict) and list(modules) == [str(k) for k in range(len(modules))]


def _child(thing: Any, name: str) -> Any:
    space = vars(thing)
    return space[name] if name in space else space.get("_modules", {}).get(name)


def _items_of(value: Any) -> list[Any]:
    if type(value) in (list, tuple):
        return list(value)
    if isinstance(value, dict) and list(value) == [str(k) for k in range(len(value))]:
        return list(value.values())
    return []


def _links(owner: Any, place: ListPlace) -> list[tuple[Any, str, Any]]:
    links = []
    for name in (*place.path, place.name):
        value = _child(owner, name)
        links.append((owner, name, value))
        owner = value
    if not _items_of(owner):
        raise Unfit("the list of transforms is not there")
    return links


def _standing_in(owner: Any, links: list[tuple[Any, str, Any]], items: list[Any], again: str) -> Any:
    """A stand-in for the owner, through which the list is these items."""
    held = links[-1][2]
    shown: Any = {str(k): item for k, item in enumerate(items)} if isinstance(held, dict) else type(held)(items)
    for holder, name, _ in reversed(links):
        shown = _showing(holder, name, shown, again if holder is owner else None, owner)
    return shown


def _showing(thing: Any, name: str, value: Any, again: str | None, owner: Any) -> Any:
    """A stand-in that shares the object's attributes and shows another value under this name."""
    kind: Any = type(thing)
    if any(vars(base).get("__slots__") for base in kind.__mro__):
        raise Unfit(f"a {kind.__qualname__} keeps its state elsewhere than in plain attributes")

    def refuse(*_: Any) -> None:
        raise Reached(f"it sets {name}")

    body: dict[str, Any] = {
        name: property(lambda self: value, refuse, refuse),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    if again is not None:  # other samples, fetched on the way, go through the whole list
        body[again] = lambda self, index: getattr(owner, again)(index)
    stand_in = object.__new__(type(kind)(kind.__name__, (kind,), body))
    object.__setattr__(stand_in, "__dict__", vars(thing))
    return stand_in
