"""Finds out how a model can be divided: a trial of its call, in a forked process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from overdrive.model_state.trial_call import NoTrial, may_fork_with, tried
from overdrive.techniques.parallel.tensor_parallel.trial import ModelTrial
from overdrive.techniques.parallel.tensor_parallel.weights import candidates, refusal


def found(
    model: nn.Module, optimizers: Sequence[Any], call: Callable[..., Any], args: Any, kwargs: Any, ranks: int
) -> dict[str, Any]:
    """How this call, which is about to be made, can be divided: what JSON can hold.

    Returns:
        `cuts`: by a weight's name, the dimension and its segments; `reasons`: by name why others stay whole; with an
        empty name, why all of them do.
    """
    if why := refusal(model, optimizers):
        return _whole(why)
    names, reasons = candidates(model)
    if not names:
        return {"cuts": {}, "reasons": reasons}
    if not may_fork_with(model):
        return _whole("it could not be tried: its process cannot be forked (a GPU is in use)")
    try:
        told = tried(model, lambda: ModelTrial(model, call, args, kwargs, ranks).found(names)).made
    except NoTrial as error:
        return _whole(f"it could not be tried ({error})")
    return {"cuts": told["cuts"], "reasons": {**reasons, **told["reasons"]}}


def _whole(why: str) -> dict[str, Any]:
    return {"cuts": {}, "reasons": {"": why}}
