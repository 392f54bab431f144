"""What is declared of classes and functions from outside: who counts as of an abstract class, and annotations."""

from __future__ import annotations

import abc
from _abc import _get_dump  # type: ignore[import-not-found]
from collections.abc import Iterable
from functools import partial
from typing import Any

from overdrive.changes.walk.walk import Walk

_OF_ANNOTATIONS = frozenset(("__annotations__", "get_type_hints", "get_annotations", "signature"))


class Registered:
    """Gives the names of all that is registered with abstract classes. Where nobody has registered anything since,
    one number says so."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._kinds = [each for each in kinds if isinstance(each, abc.ABCMeta)]
        self._token: object = None
        self._told: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def __call__(self) -> list[str]:
        token = abc.get_cache_token()
        if token != self._token:
            self._token = token
            self._told = [repr(sorted(map(_name, _get_dump(each)[0]))) for each in self._kinds]
        return self._told


def _name(reference: Any) -> str:
    kind = reference()
    return f"{kind.__module__}.{kind.__qualname__}" if kind is not None else ""


def visit_annotations(walk: Walk, things: Iterable[Any], names: set[str]) -> None:
    """Of classes and functions of the program's, where code with these names may look at them."""
    if _OF_ANNOTATIONS.isdisjoint(names):
        return
    for each in list(things):
        walk.visit(_annotations(each))
        walk.watch.state(partial(_annotations, each))


def _annotations(thing: Any) -> dict[str, Any]:
    found = vars(thing).get("__annotations__") if isinstance(thing, type) else thing.__annotations__
    return dict(found) if isinstance(found, dict) else {}
