"""Where programs meet what is in parts: optimizers' steps and state, clipping, `zero_grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.own_part import OwnPart
from overdrive.model_state.sharded.states import ShardedStates
from overdrive.ranks.group import Group
from overdrive.ranks.rank import Rank
from overdrive.seams.hub import Seams


def share(
    seams: Seams,
    rank: Rank,
    group: Callable[[], Group],
    kept: Kept | None,
    divide: Callable[[Any], None] | None = None,
) -> None:
    """Have optimizers' state divided over a group, and gradients and parameters where they are kept in parts.

    Args:
        divide: told of a model whose call is left out, as a run that survives does; None where that cannot be.
    """
    states = ShardedStates(group, rank.say, kept)
    seams.optimizer_called.subscribe(states.stepped)
    seams.state_asked.subscribe(states.asked)
    if kept is not None:
        seams.gradients_zeroed.subscribe(kept.gradients.zeroed)
        seams.gradients_clipped.subscribe(kept.gradients.clipped)
        seams.norm_taken.subscribe(kept.gradients.norm)
        rank.parts = OwnPart(group, kept, states, divide) if divide is not None else None

    def left() -> None:
        in_parts = states.in_parts or (kept is not None and len(kept))
        if not seams.state_asked.wanted and in_parts:  # left out, and not at the end of the run
            group().end("stopped: what is divided over ranks can no longer be kept so, by a defect of Overdrive's")

    seams.on_undo(left)
