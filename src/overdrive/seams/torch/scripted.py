"""TorchScript and the compiler, which know functions of PyTorch by their identity, take what stands in one's place for
that one."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch._jit_internal import boolean_dispatched
from torch.jit import _builtins

from overdrive.core.in_place import InPlace


def scripted_alike(stand_in: Any, plain: Any) -> Callable[[], None]:
    """Have them take one for the other, be it an operator or written in Python. Returns what ends that."""
    if isinstance(stand_in, InPlace):  # by PyTorch's own marks; what is no function the compiler would refuse to enter
        vars(stand_in).update({"__script_if_tracing_wrapper": True, "__original_fn": plain})
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
