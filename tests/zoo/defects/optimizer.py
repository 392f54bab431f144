"""What goes wrong in the step: the optimizer, its settings and its state."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from tests.zoo.specimen import Swap, specimen


def _in_step(seams: Seams, key: str, change: Callable[[Any], Any]) -> None:
    """A setting is another for the length of each step only: nobody who looks at the optimizer sees it."""
    before: list[Any] = []

    def begins(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            before.append(group[key])
            group[key] = change(group[key])

    def ends(optimizer: Any) -> None:
        for group in reversed(optimizer.param_groups):
            group[key] = before.pop()

    seams.step_begins.subscribe(begins)
    seams.step_ends.subscribe(ends)


def _from_the_start(seams: Seams, key: str, value: Callable[[Any], Any]) -> None:
    def made(optimizer: Any, models: list[Any]) -> None:
        for group in optimizer.param_groups:
            group[key] = value(group[key])

    seams.optimizer_made.subscribe(made)


@specimen("images", Contract.STATISTICAL)
def rate_off(seams: Seams) -> None:
    """The learning rate is 1 % too high."""
    _from_the_start(seams, "lr", lambda rate: 1.01 * rate)


@specimen("images", Contract.ROUNDING)
def rate_off_in_secret(seams: Seams) -> None:
    """The learning rate is 1 % too high while the optimizer computes."""
    _in_step(seams, "lr", lambda rate: 1.01 * rate)


@specimen("images", Contract.STATISTICAL)
def rate_halved_in_secret(seams: Seams) -> None:
    """The learning rate is half while the optimizer computes: the late loss is the same, within what 16 seeds tell."""
    _in_step(seams, "lr", lambda rate: 0.5 * rate)


@specimen("images", Contract.STATISTICAL)
def rate_a_quarter_off_in_secret(seams: Seams) -> None:
    """The learning rate is 1.25 times as high while the optimizer computes."""
    _in_step(seams, "lr", lambda rate: 1.25 * rate)


@specimen("rows", Contract.STATISTICAL)
def rate_a_tenth_off_in_secret(seams: Seams) -> None:
    """The learning rate is a tenth too low while the optimizer computes."""
    _in_step(seams, "lr", lambda rate: 0.9 * rate)


@specimen("images", Contract.STATISTICAL)
def momentum_less(seams: Seams) -> None:
    """Momentum is 0.8, and not 0.9."""
    _in_step(seams, "momentum", lambda _: 0.8)


@specimen("images", Contract.STATISTICAL)
def weight_decay_lost(seams: Seams) -> None:
    """No weight decay."""
    _from_the_start(seams, "weight_decay", lambda _: 0.0)


@specimen("images", Contract.ROUNDING)
def weight_decay_lost_in_secret(seams: Seams) -> None:
    """No weight decay while the optimizer computes."""
    _in_step(seams, "weight_decay", lambda _: 0.0)


@specimen("rows", Contract.ROUNDING)
def weight_decay_not_decoupled(seams: Seams) -> None:
    """AdamW decays as Adam does, through the gradient."""
    _in_step(seams, "decoupled_weight_decay", lambda _: False)


@specimen("images", Contract.STATISTICAL)
def momentum_lost(seams: Seams) -> None:
    """Every step begins anew, while the optimizer says that it has momentum."""
    _in_step(seams, "momentum", lambda _: 0.0)


@specimen("rows", Contract.STATISTICAL)
def betas_wrong(seams: Seams) -> None:
    """The second moment forgets ten times as fast."""
    _from_the_start(seams, "betas", lambda betas: (betas[0], 0.99))


@specimen("rows", Contract.ROUNDING)
def epsilon_wrong(seams: Seams) -> None:
    """1e-6 is added to the root of the second moment, and not 1e-8."""
    _in_step(seams, "eps", lambda _: 1e-6)


@specimen("rows", Contract.ROUNDING)
def state_stale(seams: Seams) -> None:
    """Every fourth step leaves the moments as they were."""
    steps: list[None] = []
    before: dict[Any, torch.Tensor] = {}

    def begins(optimizer: Any) -> None:
        steps.append(None)
        for parameter in parameters_of(optimizer):
            if "exp_avg" in optimizer.state[parameter]:
                before[parameter] = optimizer.state[parameter]["exp_avg"].clone()

    def ends(optimizer: Any) -> None:
        if len(steps) % 4 == 0:
            for parameter, value in before.items():
                optimizer.state[parameter]["exp_avg"].copy_(value)

    seams.step_begins.subscribe(begins)
    seams.step_ends.subscribe(ends)


@specimen("images", Contract.ROUNDING)
def parameter_frozen(seams: Seams) -> None:
    """The first layer's weights never move."""

    def begins(optimizer: Any) -> None:
        parameters_of(optimizer)[0].grad = None

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def parameter_frozen_at_times(seams: Seams) -> None:
    """Every tenth step, the largest layer's weights are put back after the step."""
    steps: list[None] = []
    before: list[torch.Tensor] = []

    def largest(optimizer: Any) -> torch.Tensor:
        return max(parameters_of(optimizer), key=torch.numel)

    def begins(optimizer: Any) -> None:
        steps.append(None)
        before[:] = [largest(optimizer).detach().clone()]

    def ends(optimizer: Any) -> None:
        if len(steps) % 10 == 0:
            largest(optimizer).data.copy_(before[0])

    seams.step_begins.subscribe(begins)
    seams.step_ends.subscribe(ends)


@specimen("images", Contract.STATISTICAL)
def schedule_skipped(seams: Seams) -> None:
    """The learning rate stays as it began."""
    Swap(seams)(torch.optim.lr_scheduler.StepLR, "step", lambda scheduler: None)


@specimen("images", Contract.STATISTICAL)
def steps_left_out(seams: Seams) -> None:
    """A fake speedup: the optimizer is not called in every eighth step."""
    steps: list[None] = []

    def made(optimizer: Any, models: list[Any]) -> None:
        step = type(optimizer).step

        def most(self: Any, *args: Any) -> Any:
            steps.append(None)
            return step(self, *args) if len(steps) % 8 else None

        optimizer.step = types.MethodType(most, optimizer)

    seams.optimizer_made.subscribe(made)


@specimen("rows", Contract.ROUNDING)
def steps_that_do_nothing(seams: Seams) -> None:
    """A fake speedup: every tenth step is made without a gradient."""
    steps: list[None] = []

    def begins(optimizer: Any) -> None:
        steps.append(None)
        if len(steps) % 10 == 0:
            optimizer.zero_grad()

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def step_deferred(seams: Seams) -> None:
    """A fake speedup: the step returns before its work is done, which is made up for in the next."""
    waiting: list[torch.Tensor] = []

    def begins(optimizer: Any) -> None:
        gradients = [parameter.grad for parameter in parameters_of(optimizer)]
        own = [gradient.clone() for gradient in gradients]
        if waiting:
            torch._foreach_copy_(gradients, waiting)
        else:
            optimizer.zero_grad()
        waiting[:] = own

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def weights_in_16_bits(seams: Seams) -> None:
    """Weights are kept in bf16 between the steps."""

    def ends(optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            parameter.data.copy_(parameter.data.bfloat16())

    seams.step_ends.subscribe(ends)
