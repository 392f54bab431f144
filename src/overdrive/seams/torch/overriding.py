"""Functions of PyTorch that a class or a mode of the program's answers itself (`__torch_function__`).

It is told which function was called, and knows that by its identity: `HANDLED[func]`, `func is torch.conv2d`. It took
what it compares with from `torch`, where ours stands in the place of PyTorch's own. By C it would be told of that one.
Of methods C tells what stands in the class, which is ours, and functions written in Python find themselves by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.compiler import is_compiling
from torch.overrides import _get_overloaded_args, handle_torch_function, has_torch_function

# Modes that are to be told of PyTorch's own function: ours, which ask no subscriber again, and that of default devices.
# A class that comes after them is to be told of what stands in its place all the same: one of a mask of
# `torch.nn.attention.bias` took PyTorch's own for any other, and handed over memory that nobody had written to.
_OF_PLAIN = ("overdrive.", "torch.utils._device")
NOBODY = object()


def overridden(stand_in: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a class or a mode answers that overrides the function which `stand_in` stands for, and is to be told of that
    one; NOBODY where there is none. A compiler asks them itself."""
    if is_compiling() or not (given := _overriding(args, kwargs)):
        return NOBODY
    return handle_torch_function(stand_in, given, *args, **kwargs)


def _overriding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What a call is given, where somebody is to be told of it; else nothing."""
    given = (*args, *kwargs.values()) if kwargs else args
    if not has_torch_function(given):
        return ()
    modes = _len_torch_function_stack()
    if modes and type(_get_function_stack_at(modes - 1)).__module__.startswith(_OF_PLAIN):
        return given if any(type(each) is not torch.Tensor for each in _get_overloaded_args(given)) else ()
    return given
