"""Seams *loss sent backward*: `Tensor.backward` and `torch.autograd.backward` (the first calls the second); and
*gradients asked*: `torch.autograd.grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.internals import in_backward
from overdrive.seams.torch.tracing import transformed


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.gradients_asked.wanted:
        ask = torch.autograd.grad

        @functools.wraps(ask)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if in_backward() or transformed():  # a function's own backward asks so, and so does `torch.func.grad`
                return ask(outputs, inputs, *args, **kwargs)
            return hub.gradients_asked.run(outputs, functools.partial(ask, outputs), inputs, *args, **kwargs)

        patches.replace(torch.autograd, "grad", grad)
    if hub.gradient_watched.wanted:
        _watch(hub, patches)
    if not hub.loss_backward.wanted and not hub.backward_done.wanted:
        return []
    run = torch.autograd.backward
    sent, done = hub.loss_backward, hub.backward_done

    @functools.wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if in_backward():  # what a checkpoint sends backward, or a function's own, is no loss
            run(tensors, *args, **kwargs)
            return
        if isinstance(tensors, torch.Tensor):
            run(sent.apply(tensors), *args, **kwargs)
        elif isinstance(tensors, GradientEdge):  # a place in the graph is a tuple by itself; it has no value
            run(tensors, *args, **kwargs)
        else:
            tensors = tuple(tensors)  # it may be read once only
            losses = tuple(sent.apply(each) if isinstance(each, torch.Tensor) else each for each in tensors)
            run(losses, *args, **kwargs)
        if done.subscribers:
            done.publish(tensors)

    patches.replace(torch.autograd, "backward", backward)
    return []


def _watch(hub: Seams, patches: Patches) -> None:
    plain_hook: Any = torch.Tensor.register_hook
    plain_retain: Any = torch.Tensor.retain_grad
    plain_late: Any = torch.Tensor.register_post_accumulate_grad_hook

    def watched(tensor: Any, hook: Any, register: Any = plain_hook) -> Any:
        def plain(hook: Any) -> Any:
            return plain_retain(tensor) if hook is None else register(tensor, hook)

        found = hub.gradient_watched.ask(tensor, hook, plain)
        return plain(hook) if found is None else found

    @functools.wraps(plain_hook)
    def register_hook(self: Any, hook: Any) -> Any:
        return watched(self, hook)

    @functools.wraps(plain_retain)
    def retain_grad(self: Any) -> None:
        watched(self, None)

    @functools.wraps(plain_late)
    def register_post_accumulate_grad_hook(self: Any, hook: Any) -> Any:
        return watched(self, hook, plain_late)

    patches.replace(torch.Tensor, "register_hook", register_hook)
    patches.replace(torch.Tensor, "register_post_accumulate_grad_hook", register_post_accumulate_grad_hook)
    patches.replace(torch.Tensor, "retain_grad", retain_grad)
