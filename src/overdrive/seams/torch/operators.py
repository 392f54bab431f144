"""Seam *operator called*: PyTorch functions, by name, and what goes through them (`F.conv2d`, `nn.MaxPool2d`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from overdrive.core.in_place import in_place_of
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from
from overdrive.seams.points import Answer
from overdrive.seams.torch.overriding import NOBODY, overridden
from overdrive.seams.torch.scripted import scripted_alike
from overdrive.seams.torch.tracing import of_the_compiler, traced

OPERATORS = {  # by name, functions of `torch` or `F`
    "conv": ("conv1d", "conv2d"),
    "max_pool2d": ("max_pool2d",),
    "batch_norm": ("batch_norm",),
    "linear": ("linear",),
    "addmm": ("addmm",),
}
METHODS = {  # likewise, methods of tensors
    "view": ("view", "view_as"),
    "as_strided": ("as_strided",),
    "reshape": ("reshape", "flatten", "ravel", "contiguous"),  # views where they can be, else copies
}
_READERS = ("torch.", "overdrive.")  # modules that write to nothing that they have from these last ones


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    removers: list[Callable[[], None]] = []
    for operator, point in hub.operators.items():
        if operator not in OPERATORS and operator not in METHODS:
            for owner in point.techniques:
                hub.leave_out(owner, f"no operator is called {operator!r}")
        for name in OPERATORS.get(operator, ()) if point.wanted else ():
            plain = getattr(torch, name, None) or getattr(F, name)
            seen = _seen(point, plain, function=True)
            for holder in (torch, F):
                if vars(holder).get(name) is plain:
                    patches.replace(holder, name, seen)
            removers.append(scripted_alike(seen, plain))
        apart = _READERS if operator == "reshape" else ()
        for name in METHODS.get(operator, ()) if point.wanted else ():
            patches.replace(torch.Tensor, name, _seen(point, getattr(torch.Tensor, name), apart))
            if plain := getattr(torch, name, None):
                seen = _seen(point, plain, apart, function=True)
                patches.replace(torch, name, seen)
                removers.append(scripted_alike(seen, plain))
    return removers


def _seen(
    point: Answer, plain: Callable[..., Any], apart: tuple[str, ...] = (), function: bool = False
) -> Callable[..., Any]:
    """
    Args:
        apart: how the names of modules begin whose calls are not the point's.
        function: it is no method.
    """

    @in_place_of(plain)
    def operator(*args: Any, **kwargs: Any) -> Any:
        if function and (answer := overridden(operator, args, kwargs)) is not NOBODY:
            return answer
        if not args or type(args[0]) not in (torch.Tensor, torch.nn.Parameter) or traced():
            return plain(*args, **kwargs)
        frame = sys._getframe(1)
        if apart and str(frame.f_globals.get("__name__", "")).startswith(apart):
            return plain(*args, **kwargs)
        answer = None if of_the_compiler(frame) else point.ask(plain, args, kwargs)
        return called_from(frame, plain)(*args, **kwargs) if answer is None else answer

    return operator
