"""Seams *optimizer called*, *backward called* and *gradients called*: calls that may be left out as a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.internals import in_backward


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.optimizer_called.wanted:
        hook = Optimizer.profile_hook_step

        def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
            """PyTorch puts this around the `step` of each class of optimizers: hooks are called outside of ours."""

            @functools.wraps(step)
            def around(self: Any, *args: Any, **kwargs: Any) -> Any:
                if not hub.optimizer_called.subscribers:  # the session is over, the class stays as it is
                    return step(self, *args, **kwargs)
                return hub.optimizer_called.run(self, functools.partial(step, self), *args, **kwargs)

            return hook(around)

        patches.replace(Optimizer, "profile_hook_step", staticmethod(profile_hook_step))
    if hub.backward_called.wanted:
        run = torch.autograd.backward

        @functools.wraps(run)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if in_backward():  # what a checkpoint sends backward, or a function's own
                run(tensors, *args, **kwargs)
                return
            if isinstance(tensors, Iterator):  # it may be read once only
                tensors = tuple(tensors)
            hub.backward_called.run(tensors, functools.partial(run, tensors, *args, **kwargs))

        patches.replace(torch.autograd, "backward", backward)
    if hub.gradients_called.wanted:
        ask = torch.autograd.grad

        @functools.wraps(ask)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if in_backward():
                return ask(outputs, inputs, *args, **kwargs)
            if isinstance(inputs, Iterator):  # as parameters are
                inputs = tuple(inputs)
            return hub.gradients_called.run(inputs, functools.partial(ask, outputs, inputs, *args, **kwargs))

        patches.replace(torch.autograd, "grad", grad)
    return []
