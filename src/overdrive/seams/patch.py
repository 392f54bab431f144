"""Reversible replacement of attributes: what is replaced is put back exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overdrive.core.in_place import InPlace, stands

_ABSENT = object()


class Patches:
    """Attributes replaced for the length of a session."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, holder: Any, name: str, value: Any) -> None:
        """Set `holder.name`, remembering what stood in its own namespace (nothing, where inherited)."""
        self._before.append((holder, name, vars(holder).get(name, _ABSENT)))
        setattr(holder, name, value)
        stands(value, holder, name)

    def restore(self) -> None:
        while self._before:
            holder, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, value)


def plain_of(function: Any) -> Any:
    """The framework's own function, where one of a seam's stands in its place: within a mode of PyTorch's, the plain
    one comes to that again, which has asked its subscribers already."""
    while isinstance(function, InPlace) or _is_a_seams(function):
        function = function.__wrapped__
    return function


def _is_a_seams(function: Any) -> bool:
    return hasattr(function, "__wrapped__") and function.__globals__["__name__"].startswith("overdrive.seams.")


def last_first(removers: list[Callable[[], None]]) -> Callable[[], None]:
    """What calls all of these, the last one first; a second call does nothing."""

    def leave() -> None:
        while removers:
            removers.pop()()

    return leave
