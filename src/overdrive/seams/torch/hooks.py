"""What the program has hung on modules, parameters and optimizers, in PyTorch's private lists of hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from overdrive.seams.keras.layers_on_torch import modules_of

_MAKE_WEIGHTS = (WeightNorm, SpectralNorm)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calls of this module are seen by hooks of its own, before or after, forward or backward."""
    return any(_hooks_in(module))


def own_hooks(model: torch.nn.Module) -> bool:
    """Whether the program has put hooks on modules of this model, or on all, which see every call of them."""
    return all_modules_have_hooks() or any(hooks_of(model))


def sees_its_batch(model: torch.nn.Module) -> bool:
    """Whether hooks see what it is called with: all but those by which PyTorch makes weights of other parameters."""
    return all_modules_have_hooks() or any(
        type(hook) not in _MAKE_WEIGHTS for hooks in hooks_of(model) for hook in hooks.values()
    )


def made_in_each_call(thing: Any) -> frozenset[str]:
    """Attributes that PyTorch's own hooks make of parameters, before all else in a call of this module."""
    if not isinstance(thing, torch.nn.Module):
        return frozenset()
    hooks: Iterable[Any] = thing._forward_pre_hooks.values()
    return frozenset(hook.name for hook in hooks if type(hook) in _MAKE_WEIGHTS)


def hooks_of(model: torch.nn.Module) -> list[dict[int, Any]]:
    """Where the modules of this model have their hooks, empty or not."""
    return [hooks for each in modules_of(model) for hooks in _hooks_in(each)]


def _hooks_in(module: Any) -> tuple[dict[int, Any], ...]:
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def all_modules_have_hooks() -> bool:
    """Whether there are hooks that are called for every module."""
    return bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def global_hooks() -> list[dict[Any, Any]]:
    """Where the hooks are that are called for every module."""
    module: Any = torch.nn.modules.module
    return [value for name, value in vars(module).items() if name.startswith("_global_") and isinstance(value, dict)]


def gradient_hooks(parameter: Any) -> Any:
    """The program's hooks on the gradient of a leaf, by key; None where there are none."""
    return parameter._backward_hooks


def hook_first(parameter: Any, hook: Callable[[Any], Any]) -> Any:
    """`register_hook`, but it is called before those that are there; they are handed what it returns."""
    handle = parameter.register_hook(hook)
    held = gradient_hooks(parameter) or {}
    if handle.id not in held:  # another technique keeps it
        return handle
    ours = held.pop(handle.id)
    others = dict(held)
    held.clear()  # PyTorch reads it as the plain dict that it is beneath: `move_to_end` would do nothing
    held.update({handle.id: ours, **others})
    return handle


@contextmanager
def without_gradient_hooks(leaves: Iterable[Any]) -> Iterator[None]:
    """The program's hooks on these gradients are not called meanwhile."""
    held = [(hooks, dict(hooks)) for each in leaves if (hooks := gradient_hooks(each))]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in held:
            hooks.update(before)


def accumulation_hooks(parameter: Any) -> Any:
    """The same, of those that are called once it is in `.grad`."""
    return parameter._post_accumulate_grad_hooks


def step_hooks(optimizer: Any) -> tuple[int, int]:
    """How many see each of its steps, before and after."""
    return len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)
