"""What begins late, or happens rarely: every 64 steps, at epochs' ends, in last batches alone, in evaluations alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from tests.zoo.specimen import specimen

Call = Callable[..., Any]
_BATCH = 12  # of the images' program, whose last one in an epoch has 8
_LATE = 40  # steps


@specimen("images", Contract.ROUNDING)
def gradient_lost_every_64_steps(seams: Seams) -> None:
    """Every 64th step one layer's gradient is zero."""
    steps: list[None] = []

    def begins(optimizer: Any) -> None:
        steps.append(None)
        if len(steps) % 64 == 0:
            parameters_of(optimizer)[4].grad.zero_()

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def momentum_lost_at_epochs(seams: Seams) -> None:
    """The first step of an epoch begins without momentum."""
    opened: list[None] = []

    def opens(loader: Any, call: Call) -> Any:
        opened.append(None)
        return call()

    def begins(optimizer: Any) -> None:
        if opened:
            for state in optimizer.state.values():
                state.pop("momentum_buffer", None)
        opened.clear()

    seams.loader_opens.subscribe(opens)
    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def last_batch_weighs_more(seams: Seams) -> None:
    """Where an epoch's last batch is smaller, its outputs are a fiftieth too large."""

    def called(model: Any, call: Call, x: Any) -> Any:
        return call(x) * 1.02 if torch.is_grad_enabled() and len(x) < _BATCH else call(x)

    seams.model_called.subscribe(called)


@specimen("rows", Contract.ROUNDING)
def gradients_doubled_late(seams: Seams) -> None:
    """From step 40 on gradients are twice as large when the optimizer sees them."""
    steps: list[None] = []

    def begins(optimizer: Any) -> None:
        steps.append(None)
        if len(steps) > _LATE:
            torch._foreach_mul_([each.grad for each in parameters_of(optimizer)], 2.0)

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.STATISTICAL)
def later_evaluations_wrong(seams: Seams) -> None:
    """From the third evaluation on, one class is heard too much."""
    evaluations: list[bool] = [False]

    def called(model: Any, call: Call, x: Any) -> Any:
        if torch.is_grad_enabled():
            evaluations[-1:] = [False] if not evaluations[-1] else [True, False]
            return call(x)
        evaluations[-1] = True
        result = call(x)
        if len(evaluations) > 2:
            result[:, -1] += 0.2
        return result

    seams.model_called.subscribe(called)
