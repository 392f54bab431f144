"""Techniques that take a phase of a step away, to see whether the step shrinks by what a profile said of it: for
`profile.py` only. What the program then learns is nonsense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.techniques.technique import Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams


_TRUE = 3  # losses that are sent backward as the program means it, so that all gradients are there


class _Without(Technique):
    family = "benchmark"
    contract = Contract.OPEN
    relieves = ()


def _keep_gradients(seams: Seams, done: list[int]) -> None:
    """Nobody makes new ones, so they stay, at zero: with others the weights would run away, and arithmetic get slow."""

    def zeroed(holder: Any, call: Any, none: bool) -> None:
        call(none if done[0] <= _TRUE else False)

    seams.gradients_zeroed.subscribe(zeroed)


class WithoutData(_Without):
    """Gives the first batch again and again.

    What it does: takes waiting for data away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_data"

    def install(self, seams: Seams, settings: Settings) -> None:
        kept: dict[tuple[type, int], Any] = {}

        def opened(loader: Any, call: Any) -> Any:
            key = type(loader.dataset), len(loader)
            if key not in kept:
                kept[key] = next(iter(call()))
            return iter([kept[key]] * len(loader))

        seams.loader_opens.subscribe(opened)


class WithoutBackward(_Without):
    """Sends a number of its own backward; the optimizer goes on with the gradients of the first step.

    What it does: takes the backward pass away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_backward"

    def install(self, seams: Seams, settings: Settings) -> None:
        done = [0]

        def sent(loss: Any) -> Any:
            import torch

            done[0] += 1
            return loss if done[0] <= _TRUE else torch.zeros((), requires_grad=True)

        seams.loss_backward.subscribe(sent)
        _keep_gradients(seams, done)


class WithoutOptimizer(_Without):
    """Hides the gradients from the optimizer while it steps.

    What it does: takes the optimizer's work away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_optimizer"

    def install(self, seams: Seams, settings: Settings) -> None:
        hidden: list[tuple[Any, Any]] = []

        def begins(optimizer: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    hidden.append((parameter, parameter.grad))
                    parameter.grad = None

        def ends(optimizer: Any) -> None:
            for parameter, gradient in hidden:
                parameter.grad = gradient
            hidden.clear()

        seams.step_begins.subscribe(begins)
        seams.step_ends.subscribe(ends)


class WithoutModel(_Without):
    """Gives the model's first result of each kind again; the gradient of the loss ends there.

    What it does: takes the forward and the backward pass away. When it helps, when it hurts, contract: never,
    always, none.
    """

    name = "without_model"

    def install(self, seams: Seams, settings: Settings) -> None:
        kept: dict[Any, Any] = {}
        done = [0]

        def called(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            import torch
            from torch.utils._pytree import tree_map_only

            shapes = tuple(tuple(each.shape) if isinstance(each, torch.Tensor) else type(each) for each in args)
            key = id(model), torch.is_grad_enabled(), shapes
            if key not in kept or done[0] <= _TRUE:
                kept[key] = call(*args, **kwargs)
                if done[0] <= _TRUE:
                    return kept[key]
            trained = torch.is_grad_enabled()
            return tree_map_only(
                torch.Tensor,
                lambda each: each.detach().requires_grad_(trained and each.is_floating_point()),
                kept[key],
            )

        def sent(loss: Any) -> Any:
            done[0] += 1
            return loss

        seams.model_called.subscribe(called)
        seams.loss_backward.subscribe(sent)
        _keep_gradients(seams, done)
