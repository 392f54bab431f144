"""How often a model that answers is given inputs of which sizes, by what it is given in each of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.core.call_sizes import OTHERS
from overdrive.seams.batches import leaves

Sizes = tuple[tuple[int, ...], ...]  # of each input that has any
_MOST = 500  # that are kept apart: a program may send another in each call
_MOST_INPUTS = 6  # that are told


class CallSizes:
    """Costs a microsecond a call, or two."""

    def __init__(self) -> None:
        self._counts: dict[Sizes | None, int] = {}
        self._given: Sizes | None = None

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A call is about to be made."""
        self._given = _sizes((*args, *kwargs.values()))

    def counted(self) -> None:
        """That call is one of those that count."""
        key = self._given if self._given in self._counts or len(self._counts) < _MOST else None
        self._counts[key] = self._counts.get(key, 0) + 1

    def by_size(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for sizes, calls in self._counts.items():
            name = _told(sizes)
            found[name] = found.get(name, 0) + calls
        return found


def _sizes(inputs: Sequence[Any]) -> Sizes | None:
    """Of what lies in lists and the like only where nothing beside them has a size: a cache, or features, follow it."""
    try:
        found = tuple([tuple(each.shape) for each in inputs if hasattr(each, "shape")])
        found = found or tuple([tuple(each.shape) for each in leaves(inputs) if hasattr(each, "shape")])
        hash(found)
    except Exception:  # what a program's own class answers, or a nested tensor, whose shape cannot be asked for
        return None
    return found


def _told(sizes: Sizes | None) -> str:
    if not sizes:
        return OTHERS
    told = [" × ".join(map(str, each)) or "a number" for each in sizes[:_MOST_INPUTS]]
    return ", ".join([*told, *(["…"] if len(sizes) > _MOST_INPUTS else [])])
