"""What stands in a library's module or class by certain names, what we ourselves put there left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

from overdrive.core.in_place import InPlace

_OURS = f"{__name__.split('.')[0]}."
_ABSENT = object()


class Bindings:
    """Gives what stands by these names now; where it is ours, what stood there when this was first asked."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._first: list[Any] = []

    def __call__(self, space: Mapping[str, Any]) -> list[Any]:
        now = [space.get(name, _ABSENT) for name in self._names]
        if not self._first:
            self._first = now
        elif any(one is not first for one, first in zip(now, self._first, strict=True)):
            return [first if is_ours(one) else one for one, first in zip(now, self._first, strict=True)]
        return now


def is_ours(thing: Any) -> bool:
    """Whether it is a function of Overdrive's."""
    if isinstance(thing, InPlace):
        return True
    if isinstance(thing, property):
        thing = thing.fget
    function = getattr(thing, "__func__", thing)
    return isinstance(function, FunctionType) and str(function.__globals__.get("__name__")).startswith(_OURS)
