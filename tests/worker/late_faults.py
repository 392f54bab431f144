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


class Output(_Late):
    """The model's result is off by one part in a million."""

    name = "late_output"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        def called(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return result * (1 + 1e-6) if due() else result

        seams.model_called.subscribe(called)


class Gradient(_Late):
    """A gradient's last bits are lost."""

    name = "late_gradient"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        def begins(optimizer: Any) -> None:
            gradient = parameters_of(optimizer)[0].grad
            if due() and gradient is not None:
                gradient.copy_(gradient.bfloat16())

        seams.step_begins.subscribe(begins)


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


class Innocent(_Late):
    """Does nothing."""

    name = "innocent"

    def go_wrong(self, seams: Seams, due: Any) -> None:
        seams.model_called.subscribe(lambda model, call, *args, **kwargs: call(*args, **kwargs))
