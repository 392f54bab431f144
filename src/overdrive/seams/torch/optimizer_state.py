"""Seam *state asked*: somebody reads `optimizer.state`, as `state_dict`, a copy and the optimizer's own step do, or
loads another one in its place: who has read the one before may hold it still."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.state_asked.wanted:
        point = hub.state_asked

        def read(self: Any) -> Any:
            if not point.rests:  # the optimizer's own step reads it once for each parameter
                point.publish(self)
            try:
                return vars(self)["state"]
            except KeyError:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute 'state'") from None

        def write(self: Any, state: Any) -> None:
            vars(self)["state"] = state

        load, give = Optimizer.load_state_dict, Optimizer.state_dict

        @functools.wraps(give)
        def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not point.rests:  # before it takes the numbers of the groups: it reads the state after these
                point.publish(self)
            return give(self, *args, **kwargs)

        @functools.wraps(load)
        def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
            point.publish(self)
            load(self, *args, **kwargs)

        patches.replace(Optimizer, "state", property(read, write))
        patches.replace(Optimizer, "state_dict", state_dict)
        patches.replace(Optimizer, "load_state_dict", load_state_dict)
    return []


def state_of(optimizer: Any) -> Any:
    """Its state, which nobody is told of."""
    return vars(optimizer)["state"]
