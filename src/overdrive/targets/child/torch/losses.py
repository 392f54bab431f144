"""What a program's losses show of its model's outputs: whether the largest of them is the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_OF_CLASSES = frozenset(("cross_entropy", "nll_loss", "multi_margin_loss"))


class Losses:
    """A subscriber of the seam *loss computed*. Outputs are told by how many there are: between a model and its loss
    there may be a softmax, or another view."""

    def __init__(self) -> None:
        self._classes: set[int] = set()
        self._values: set[int] = set()

    def note(self, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("input")
        shape = tuple(getattr(given, "shape", ()))
        if name in _OF_CLASSES and len(shape) == 2:
            self._classes.add(shape[1])
        elif shape:
            self._values.add(math.prod(shape[1:]))

    def of_classes(self, outputs: int) -> bool:
        """Whether so many outputs went into a loss that takes one of them for right, and into no other."""
        return outputs in self._classes - self._values
