"""Programs that train in Keras: their steps cannot be skipped, so that they begin from their start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

_WHY_NOT = (
    "it trains in Keras, whose steps cannot be skipped (keras.callbacks.BackupAndRestore in the program goes on from "
    "the end of an epoch)"
)


def follow(seams: Seams, cannot_skip: Callable[[str], object]) -> None:
    """`cannot_skip` is told at the first `fit`, or step of a loop of the program's own."""

    def trains(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        cannot_skip(_WHY_NOT)
        return call(*args, **kwargs)

    def stepped(optimizer: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(optimizer, torch.optim.Optimizer):
            cannot_skip(_WHY_NOT)

    seams.fit_called.subscribe(trains)
    seams.step_ends.subscribe(stepped)
