"""What shows in a whole call that nobody sees: its result, its draws, and why it cannot be divided at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.model_state.division.backward import gradients_made
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Deviation, Drawn
from overdrive.model_state.division.losses import Losses
from overdrive.model_state.division.unseen_calls import UnseenCalls
from overdrive.model_state.division.value_trial import ValueTrial, can_be_known
from overdrive.model_state.division.values import LOOKS
from overdrive.seams.torch.draws import unseen_draws
from overdrive.seams.torch.internals import arguments_unchecked, storage_id, version_of
from overdrive.seams.torch.reads import SHAPE_ONLY, noting_reads, plainly
from overdrive.seams.torch.tracing import compiled


@dataclass(frozen=True)
class Whole:
    """
    Attributes:
        made: the leaves of its result.
        looks: at what, where its code looks at values of its batch.
        values: of what it asks, where it looks.
    """

    made: list[Any]
    drawn: list[Drawn]
    looks: str
    values: ValueTrial | None


def look_at_whole(asked: CallToDivide, calls: UnseenCalls, losses: Losses, leaves: Sequence[Any]) -> Whole:
    """
    Raises:
        Deviation: it is no call that parts make up.
    """
    norms, chance = asked.norms, asked.chance
    values, looks = _what_decides(asked, calls, losses, leaves)
    norms.statistics, chance.noted, losses.totals = [], [], []
    made = calls.make(leaves, values.of_whole() if values else nullcontext())
    drawn = chance.noted
    calls.note()
    calls.restore()
    _look_for_unseen(asked, calls, losses, leaves)
    return Whole(made, drawn, looks, values)


def _what_decides(
    asked: CallToDivide, calls: UnseenCalls, losses: Losses, leaves: Sequence[Any]
) -> tuple[ValueTrial | None, str]:
    model, norms = asked.model, asked.norms
    versions = [version_of(each) for each in leaves if _counted(each)]
    norms.statistics, norms.replayed, asked.chance.noted = [], -1, []
    losses.totals, losses.replayed = [], -1
    own = {storage_id(each) for each in (*model.parameters(), *model.buffers())}
    with noting_reads(own) as reads, arguments_unchecked():  # which decides nothing
        calls.make(leaves)
    decides = [each for each in reads if not any(word in each for word in SHAPE_ONLY)]
    if decides and (not (asked.values and can_be_known(decides)) or compiled(model)):
        raise Deviation(f"{LOOKS} ({plainly(decides[0])})")
    if versions != [version_of(each) for each in leaves if _counted(each)]:
        raise Deviation("it writes to its arguments")
    calls.restore()
    return (ValueTrial(own), plainly(decides[0])) if decides else (None, "")


def _look_for_unseen(asked: CallToDivide, calls: UnseenCalls, losses: Losses, leaves: Sequence[Any]) -> None:
    """What is drawn, or normalised, past the places where it could be divided."""
    norms, chance = asked.norms, asked.chance
    assert norms.statistics is not None
    statistics, norms.statistics, chance.noted = norms.statistics, None, None
    totals, losses.totals = losses.totals, None
    of_operators = sum(bool(count) for *_, count in statistics)
    with unseen_draws() as unseen:
        made = calls.make(leaves)
        if unseen.draws:
            raise Deviation(f"it draws random numbers inside of {unseen.draws[0]}")
        if unseen.normalisations != of_operators:
            raise Deviation("it normalises its batch inside of a compiled part")
        chance.noted = []
        gradients_made(made, [each for each in asked.model.parameters() if each.requires_grad])
        if unseen.draws or chance.noted or unseen.normalisations != of_operators:
            raise Deviation("its activations are made again in the backward pass, with random numbers or batch norm")
    norms.statistics, losses.totals = statistics, totals
    calls.restore()


def _counted(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not leaf.is_inference()
