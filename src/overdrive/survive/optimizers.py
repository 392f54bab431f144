"""The optimizers that a program made, by numbers in the order of their making: of those that it still has.

A program may make one for each task or fold, of a copy of its model. Who held them would hold all these copies.
"""

from __future__ import annotations

import weakref
from typing import Any


class Optimizers:
    """
    Attributes:
        made: how many there were so far.
    """

    def __init__(self) -> None:
        self.made = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._looked_for = 0  # optimizers made by then

    def add(self, optimizer: Any) -> None:
        if optimizer not in self._numbers:
            self._numbers[optimizer] = self.made
            self.made += 1

    def number_of(self, optimizer: Any) -> int:
        """-1 for one that was not made as others are: a copy, say."""
        return self._numbers.get(optimizer, -1)

    def there(self) -> list[tuple[int, Any]]:
        """Those that the program has, in their order."""
        return [(number, optimizer) for optimizer, number in list(self._numbers.items())]

    def models(self) -> list[Any]:
        """That these train. Takes some 0.1 s where there are new ones."""
        from overdrive.seams.torch.optimizers import models_of

        if new := [optimizer for number, optimizer in self.there() if number >= self._looked_for]:
            self._models.update(models_of(*new))
            self._looked_for = self.made
        return list(self._models)
