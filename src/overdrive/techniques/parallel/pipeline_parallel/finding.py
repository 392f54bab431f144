"""Finds out how a model can be cut into stages, and its batch into micro-batches: trials of its call, in forks."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.trial import find_way
from overdrive.model_state.division.way import Way
from overdrive.model_state.sharded.share import is_dense
from overdrive.model_state.trial_call import NoTrial, may_fork_with, tried
from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks, own_hooks
from overdrive.seams.torch.internals import is_batch_norm, is_view
from overdrive.seams.torch.tracing import compiled
from overdrive.techniques.parallel.pipeline_parallel.calling import Batches
from overdrive.techniques.parallel.pipeline_parallel.trial import PipelineTrial

_MICRO_BATCHES = 2  # for each rank: with more, less time is idle, and products are smaller


def refusal(model: nn.Module) -> str:
    """Why nothing of this model is put on stages; empty where it may be."""
    if own_hooks(model):
        return "the program has hooks on it"
    if any(compiled(each) for each in model.modules()):
        return "it is compiled"
    if not may_fork_with(model):
        return "it could not be tried: its process cannot be forked (a GPU is in use)"
    for name, each in model.named_parameters():
        if each.grad is not None:
            return "it has gradients before its first call"
        if gradient_hooks(each) or accumulation_hooks(each):
            return f"the program has hooks on the gradient of {name}"
        if type(each) is not nn.Parameter or not is_dense(each) or is_view(each):
            return f"{name} is no parameter in memory of its own"
        if each.untyped_storage().nbytes() != each.nbytes:
            return f"{name} shares its memory"
    return ""


def found(asked: CallToDivide, replicas: int = 1) -> dict[str, Any]:
    """What `PipelineTrial.found` tells, with `way` and `count` where the batch is split, or `whole`: why it is not.

    Args: `replicas`: rows of stages that the ranks make.
    """
    if why := refusal(asked.model):
        return {"reason": why}
    way, rows, why = _way(asked)
    batches = None if way is None else Batches(way, rows, min(rows, _MICRO_BATCHES * asked.ranks))
    try:
        told: dict[str, Any] = tried(asked.model, lambda: PipelineTrial(asked, replicas).found(batches)).made
    except NoTrial as error:
        return {"reason": f"it could not be tried ({error})"}
    if "reason" in told:
        return told
    if batches is not None and told["split"]:
        return {**told, "way": asdict(batches.way), "count": batches.count}
    return {**told, "whole": why or told["unsplit"]}


def _way(asked: CallToDivide) -> tuple[Way | None, int, str]:
    """Where the samples are, and how many; or None, and why the batch is not split."""
    leaves = asked.leaves
    first = next((each for each in leaves if isinstance(each, torch.Tensor) and each.dim()), None)
    rows = 0 if first is None else len(first)
    if rows < asked.ranks:
        return None, 0, "too few samples in its batch"
    told = find_way(replace(asked, ranks=min(rows, _MICRO_BATCHES * asked.ranks)))
    if "reason" in told:
        return None, 0, told["reason"]
    way = Way.of_plain(told)
    if way.norms:
        name = next((name for name, each in asked.model.named_modules() if is_batch_norm(each)), "batch norm")
        return None, 0, f"{name} takes the statistics of all of it"
    if way.effects:  # it would, once for each micro-batch
        return None, 0, "it changes attributes of its own in each call"
    return way, way.rows(leaves), ""
