"""Reversible replacement of attributes: what is replaced is put back exactly as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

_ABSENT = object()


class Patches:
    """Attributes replaced for the length of a session."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, holder: Any, name: str, value: Any) -> None:
        """Set `holder.name`, remembering what stood in its own namespace (nothing, where inherited)."""
        self._before.append((holder, name, vars(holder).get(name, _ABSENT)))
        setattr(holder, name, value)
        of_c = isinstance(getattr(value, "__wrapped__", None), BuiltinFunctionType)
        if of_c and isinstance(holder, ModuleType) and not _finds_itself(value):
            value.__module__, value.__qualname__ = holder.__name__, name

    def restore(self) -> None:
        while self._before:
            holder, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, value)


def _finds_itself(function: Any) -> bool:
    """Whether pickle finds it by its names. Those of PyTorch's functions in C lead to a class that nobody sees: a model
    that holds `torch.flatten` could not be saved as a whole while ours, with the same names, stands in its place."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def plain_of(function: Any) -> Any:
    """The framework's own function, where one of a seam's stands in its place: within a mode of PyTorch's, the plain
    one comes to that again, which has asked its subscribers already."""
    while hasattr(function, "__wrapped__") and function.__globals__["__name__"].startswith("overdrive.seams."):
        function = function.__wrapped__
    return function


def last_first(removers: list[Callable[[], None]]) -> Callable[[], None]:
    """What calls all of these, the last one first; a second call does nothing."""

    def leave() -> None:
        while removers:
            removers.pop()()

    return leave
