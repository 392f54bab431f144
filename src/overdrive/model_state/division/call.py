"""A model's call that is about to be made, and what it can be made in parts with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from overdrive.model_state.division.chance import Chance, Deviation
from overdrive.model_state.division.losses import Losses
from overdrive.model_state.division.norms import Norms
from overdrive.model_state.division.tree import Build, flatten


@dataclass(frozen=True)
class CallToDivide:
    """
    Attributes:
        call: makes it.
        leaves: its arguments; `build` makes `(args, kwargs)` of them, or of others in their place.
        ranks: how many it is divided over.
        chance: draws what a part needs of the whole's random numbers; noted here is what is drawn.
        norms: takes statistics over all parts; noted here is what is normalised.
        losses: takes means over all parts, so that these may make up one number as its sum; None: they may not.
        values: whether its code may ask values of its batch, for which all parts are asked (see `values`).
        by_hand: whether sums over its batch that its code takes may be those of all parts (see `by_hand`).
        objects: whether objects that it returns may be put together of those of parts.
    """

    model: nn.Module
    call: Callable[..., Any]
    leaves: Sequence[Any]
    build: Build
    ranks: int
    chance: Chance
    norms: Norms
    losses: Losses | None = None
    values: bool = False
    objects: bool = False
    by_hand: bool = False

    def made(self, leaves: Sequence[Any]) -> Any:
        """The result for these leaves.

        Raises:
            Deviation: the model has put other things into a list or dict that it was given. It is a copy here, and the
                program would not see them.
        """
        args, kwargs = self.build(leaves)
        result = self.call(*args, **kwargs)
        now = flatten((args, kwargs))[0]
        if len(now) != len(leaves) or any(one is not other for one, other in zip(now, leaves, strict=True)):
            raise Deviation("it writes to the lists or dicts that it is given")
        return result
