"""What a fetch comes to in libraries: the functions that only libraries call, and what those find by their names.

No code of the program's names it, so that a walk cannot know. It is seen by trying, and watched from then on:
functions and plain values of modules, classes and objects of libraries. A table that one keeps (a cache, a registry)
is not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from overdrive.changes.bindings import is_ours
from overdrive.changes.code import is_library_code, is_library_module
from overdrive.changes.state import PLAIN
from overdrive.changes.watch import Watch
from overdrive.core.in_place import InPlace
from overdrive.core.whose import OURS

# By the places that they are found in (a module, or one's class or object: `textwrap:TextWrapper`), the names that were
# come to, with where in memory lies what stands by each. In a fork that is where it lies in the program, too.
Called = Mapping[str, Mapping[str, int]]

_STAY = (FunctionType, BuiltinFunctionType, InPlace, type, property, staticmethod, classmethod)
MADE_ON_THE_HEAP = 1 << 9  # of a class; attributes of others, which C made for good, cannot be set


class Calls:
    """Listens inside its `with` blocks, by a profile function, to which functions of libraries this thread calls."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, dict[str, Any]] = {}
        self._found: dict[str, dict[str, int]] = {}

    def __enter__(self) -> Calls:
        if sys.getprofile() is None:
            sys.setprofile(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.getprofile() == self._hear:
            sys.setprofile(None)

    def _hear(self, frame: Any, event: str, _: Any) -> None:
        if event == "call":
            self._codes.setdefault(frame.f_code, frame.f_globals)

    def told(self) -> Called:
        """As things are now: what fetches themselves set anew lies elsewhere than it did before them."""
        for code, space in list(self._codes.items()):
            module = sys.modules.get(str(space.get("__name__")))
            if module is not None and vars(module) is space and _is_of_library(code):
                self._look_into(module.__name__, space, code)
        return self._found

    def _look_into(self, place: str, space: dict[str, Any], code: CodeType) -> None:
        names = {*code.co_names, code.co_name}
        self._note(place, space, names)
        of_class = getattr(code, "co_qualname", "").split(".")[0]  # since Python 3.11
        for name in sorted((names | {of_class}) & space.keys()):
            thing = space[name]
            if isinstance(thing, ModuleType):
                if is_library_module(thing.__name__):
                    self._note(thing.__name__, vars(thing), names)
            elif isinstance(thing, type):
                if thing.__flags__ & MADE_ON_THE_HEAP and is_library_module(thing.__module__):
                    self._note(f"{place}:{name}", vars(thing), names)
            elif isinstance(thing, (FunctionType, InPlace)):
                continue
            elif isinstance(own := getattr(thing, "__dict__", None), dict):
                self._note(f"{place}:{name}", own, names)

    def _note(self, place: str, space: Mapping[str, Any], names: set[str]) -> None:
        there = {name: id(space[name]) for name in names & space.keys() if _stays(space[name])}
        if there:
            self._found.setdefault(place, {}).update(there)


def _stays(thing: Any) -> bool:
    return isinstance(thing, _STAY) or type(thing) in PLAIN


def watch_called(called: Called) -> Watch:
    """Where these still stand as they did, from now on they are to."""
    watch = Watch()
    for place, names in called.items():
        space = _space(place)
        for name, lies in names.items():
            if name in space and id(space[name]) == lies and not is_ours(space[name]):
                watch.fixed(space, name)
    watch.hold()
    watch.seal()
    return watch


def _space(place: str) -> Mapping[str, Any]:
    module, _, name = place.partition(":")
    space: Mapping[str, Any] = vars(sys.modules[module]) if module in sys.modules else {}
    return space if not name else getattr(space.get(name), "__dict__", {})


def _is_of_library(code: CodeType) -> bool:
    return is_library_code(code) and not code.co_filename.startswith(OURS)
