"""TorchScript, which knows functions of PyTorch by their identity, takes what stands in one's place for that one."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch._jit_internal import boolean_dispatched
from torch.jit import _builtins


def scripted_alike(stand_in: Any, plain: Any) -> Callable[[], None]:
    """Have it take one for the other, be it an operator or written in Python. Returns what ends that."""
    name = _builtins._find_builtin(plain)  # type: ignore[no-untyped-call]
    if name is not None:
        _builtins._register_builtin(stand_in, name)
        return lambda: _builtins._get_builtin_table().pop(id(stand_in), None)  # type: ignore[no-untyped-call]
    if isinstance(plain, FunctionType):
        if plain in boolean_dispatched:  # `unique`: what it returns depends on an argument
            boolean_dispatched[stand_in] = boolean_dispatched[plain]
        else:
            stand_in.__prepare_scriptable__ = lambda: plain
    return lambda: None
