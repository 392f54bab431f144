"""Techniques that turn wrong at a late step, and can be switched off. For tests of sentinels."""

from __future__ import annotations

from typing import Any

from overdrive.core.contract import Contract
from overdrive.seams.hub import Handle, Seams
from overdrive.seams.parameters import parameters_of
from overdrive.techniques.technique import Knob, Settings, Technique

_STEP = Knob("at", 4, "the step from which on it is wrong", low=0)


class _Late(Technique):
    contract = Contract.EXACT
    targets = ("forward",)
    switchable = True
    knobs = (_STEP,)

    def install(self, seams: Seams, settings: Settings) -> Handle:
        steps = [0]

        def ends(optimizer: Any) -> None:
            steps[0] += 1

        seams.step_ends.subscribe(ends, always=True)
        self.go_wrong(seams, lambda: steps[0] >= int(settings["at"]))
        return seams.handle()

    def go_wrong(self, seams: Seams, due: Any) -> None:
        raise NotImplementedError


class _OfAGradient(_Late):
    place = 0  # of its parameter

    def go_wrong(self, seams: Seams, due: Any) -> None:
        def begins(optimizer: Any) -> None:
            gradient = parameters_of(optimizer)[self.place].grad
            if due() and gradient is not None:
                self.spoil(gradient)

        seams.step_begins.subscribe(begins)

    def spoil(self, gradient: Any) -> None:
        raise NotImplementedError


class Output(_Late):
    """The model's result is off by one part in a million."""

    name = "late_output"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        def called(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return result * (1 + 1e-6) if due() else result

        seams.model_called.subscribe(called)


class Gradient(_OfAGradient):
    """A gradient's last bits are lost."""

    name = "late_gradient"

    def spoil(self, gradient: Any) -> None:
        gradient.copy_(gradient.bfloat16())


class Rate(_Late):
    """The learning rate is 1 % too high while the optimizer computes."""

    name = "late_rate"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        before: list[float] = []

        def begins(optimizer: Any) -> None:
            before.append(optimizer.param_groups[0]["lr"])
            if due():
                optimizer.param_groups[0]["lr"] *= 1.01

        def ends(optimizer: Any) -> None:
            optimizer.param_groups[0]["lr"] = before.pop()

        seams.step_begins.subscribe(begins)
        seams.step_ends.subscribe(ends)


class Dropped(_Late):
    """Random numbers are drawn besides."""

    name = "late_draw"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        import random

        def begins(optimizer: Any) -> None:
            if due():
                random.random()

        seams.step_begins.subscribe(begins)


class Reversed(_OfAGradient):
    """A bias learns the opposite of what it should."""

    name = "late_bias"
    place = -1

    def spoil(self, gradient: Any) -> None:
        gradient.neg_()


class Halved(_Late):
    """All gradients are halved."""

    name = "late_half"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        def begins(optimizer: Any) -> None:
            for parameter in parameters_of(optimizer) if due() else ():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

        seams.step_begins.subscribe(begins)


class Ruined(_OfAGradient):
    """A gradient is no number."""

    name = "late_nan"

    def spoil(self, gradient: Any) -> None:
        gradient.fill_(float("nan"))


class Rounded(_Late):
    """Gradients are off in their last two bits, as other kernels make them."""

    name = "late_rounding"
    contract = Contract.ROUNDING

    def go_wrong(self, seams: Seams, due: Any) -> None:
        import torch

        chance = torch.Generator()

        def begins(optimizer: Any) -> None:
            for parameter in parameters_of(optimizer) if due() else ():
                if parameter.grad is not None:
                    parameter.grad.mul_(1 + 2e-7 * torch.randn(parameter.grad.shape, generator=chance))

        seams.step_begins.subscribe(begins)


class Coarse(_Late):
    """Gradients in bf16."""

    name = "late_bf16"
    contract = Contract.STATISTICAL

    def go_wrong(self, seams: Seams, due: Any) -> None:
        def begins(optimizer: Any) -> None:
            for parameter in parameters_of(optimizer) if due() else ():
                if parameter.grad is not None:
                    parameter.grad.copy_(parameter.grad.bfloat16())

        seams.step_begins.subscribe(begins)


class Innocent(_Late):
    """Does nothing."""

    name = "innocent"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        seams.model_called.subscribe(lambda model, call, *args, **kwargs: call(*args, **kwargs))
