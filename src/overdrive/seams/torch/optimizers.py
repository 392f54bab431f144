"""Seams *optimizer made*, *optimizer stepped* and *closure called*."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.compiler import is_compiling
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.patch import Patches
from overdrive.seams.points import Event
from overdrive.seams.torch.modules import live_modules


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    removers: list[Callable[[], None]] = []
    if hub.step_called.wanted:
        removers.append(register_optimizer_step_pre_hook(_told_of_closures(hub.step_called)).remove)
    if hub.step_begins.wanted:
        removers.append(register_optimizer_step_pre_hook(_hook(hub.step_begins)).remove)
    if hub.closure_called.wanted:
        removers.append(register_optimizer_step_pre_hook(_with_closure(hub)).remove)
    if hub.step_ends.wanted or hub.between_steps.wanted:
        removers.append(register_optimizer_step_post_hook(_hook(hub.step_ends, hub.between_steps)).remove)
    if hub.optimizer_made.wanted:
        make = Optimizer.__init__

        @functools.wraps(make)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            hub.optimizer_made.publish(self, _Owners(self))

        patches.replace(Optimizer, "__init__", __init__)
    return removers


def _hook(point: Event, then: Event | None = None) -> Callable[..., None]:
    """A hook that PyTorch's compiler calls and does not compile, where the program compiles its step: it would compile
    ours with it, again and again as our numbers change, and warn of what it does not know."""

    def told(optimizer: Any) -> None:  # on a function PyTorch keeps what it made of it; on a method it cannot
        point.publish(optimizer)
        if then is not None and then.subscribers:
            then.publish()

    apart = torch._compile._disable_dynamo(told)  # takes 1.3 us

    def hook(optimizer: Any, *_: Any) -> None:
        if is_compiling() or get_eval_frame_callback() is not None:
            apart(optimizer)
        elif not has_steps_within(type(optimizer)) or not _is_inner(optimizer, sys._getframe(1)):
            point.publish(optimizer)  # as `told` does: each function of ours costs 0.3 us and more amid a step
            if then is not None and then.subscribers:
                then.publish()

    return hook


def _may_be_inner(kind: Any) -> bool:
    """Whether a step of this class may make one of a class that it derives from: beside its own and that of
    `Optimizer`, which is none, it has another. Known by then for good: PyTorch gives a class its own when the program
    makes the first optimizer of it."""
    return sum("step" in vars(each) for each in kind.__mro__) > 2


has_steps_within: Callable[[Any], bool] = functools.lru_cache(256)(_may_be_inner)  # looking takes 1 us


def _is_inner(optimizer: Any, frame: Any) -> bool:
    """Whether a step of this very optimizer makes this one, as a class of the program's does by `super().step()`.

    PyTorch calls hooks in both from the moment on when the program makes an optimizer of either class: one step would
    count as two.

    Args:
        frame: of PyTorch's function that calls the hooks.
    """
    if sum(hasattr(vars(each).get("step"), "hooked") for each in type(optimizer).__mro__) < 2:
        return False
    outer = frame.f_back
    while outer is not None:
        if outer.f_code is frame.f_code and any(each is optimizer for each in outer.f_locals.values()):
            return True
        outer = outer.f_back
    return False


def _told_of_closures(point: Event) -> Callable[..., None]:
    def told(optimizer: Any, args: Any, kwargs: Any) -> None:
        point.publish(optimizer, kwargs.get("closure", args[1] if len(args) > 1 else None))

    apart = torch._compile._disable_dynamo(told)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling() or get_eval_frame_callback() is not None:
            apart(optimizer, args, kwargs)
        elif not has_steps_within(type(optimizer)) or not _is_inner(optimizer, sys._getframe(1)):
            told(optimizer, args, kwargs)

    return hook


def _with_closure(hub: Seams) -> Callable[..., Any]:
    """A hook that puts ours around the closure that a step is given."""

    def hook(optimizer: Any, args: Any, kwargs: Any, inner: bool) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # the optimizer itself is the first
        if inner or not callable(closure):
            return None

        @functools.wraps(closure)
        def around(*given: Any, **by_name: Any) -> Any:
            return hub.closure_called.run(optimizer, functools.partial(closure, *given, **by_name))

        if "closure" in kwargs:
            return args, {**kwargs, "closure": around}
        return (args[0], around, *args[2:]), kwargs

    apart = torch._compile._disable_dynamo(hook)  # which imports the compiler when it is first called

    def chosen(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_compiling() or get_eval_frame_callback() is not None:
            return apart(optimizer, args, kwargs, False)
        inner = has_steps_within(type(optimizer)) and _is_inner(optimizer, sys._getframe(1))
        return hook(optimizer, args, kwargs, inner)

    return chosen


class _Owners(Sequence[torch.nn.Module]):
    """An optimizer's models, looked for when somebody asks: a program may make an optimizer for each round or batch."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @functools.cached_property
    def _found(self) -> list[torch.nn.Module]:
        return models_of(self._optimizer)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, place: Any) -> Any:
        return self._found[place]


def models_of(*optimizers: Any) -> list[torch.nn.Module]:
    """The outermost modules that own the optimizers' parameters.

    Found among all live objects (about 0.1 s, once for all of them): a module need not be told to us,
    nor be made after the session began.
    """
    wanted = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    modules = live_modules()
    owners = [module for module in modules if any(id(parameter) in wanted for parameter in _parameters(module))]
    inner = {id(child) for owner in owners for child in _modules(owner) if child is not owner}
    return [owner for owner in owners if id(owner) not in inner]


def _modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    try:
        return list(torch.nn.Module.modules(module))  # the program may have a list of that name there
    except Exception:
        return []


def _parameters(module: torch.nn.Module) -> list[Any]:
    try:
        return list(module.parameters())
    except Exception:  # a half-made module of a library that overrides parameters()
        return []
