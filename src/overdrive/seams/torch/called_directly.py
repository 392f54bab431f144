"""Models whose `forward` the program calls itself: `model.forward(x)`, as the tutorial of serving with Flask does.

Such a call is none of `nn.Module.__call__`. What is seen of it are the calls of the model's children, one by one: a
ResNet's first convolution was taken for the model, and its time for that of an answer. So where a child is called from
its parent's `forward` that nobody has begun to call, that method of the parent's class is replaced by one that tells of
the call, from the next time on. Hooks are not called in it, as they are not without us. The same is done where somebody
waits for calls of a module within a model that do not come by its `__call__`, as of sentence-transformers' BERT.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from overdrive.core.in_place import STANDS_FOR
from overdrive.seams.patch import Patches
from overdrive.seams.torch.hooks import own_hooks

_CALLS_FORWARD = torch.nn.Module._call_impl.__code__  # `nn.Module.__call__`, which was told of
_MOST_FRAMES = 16  # between a model's forward and the call of a child: loops and methods of its own

# The call as it is written, with the module and what it is given: told of as one of a model's.
Told = Callable[[Callable[..., Any], torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class CalledDirectly:
    """Those of one session."""

    def __init__(self, patches: Patches, told: Told) -> None:
        """`told`: must come to the method as it is written, where it is called within a call that was told."""
        self._patches = patches
        self._told = told
        self._callers: dict[CodeType, bool] = {}  # code that called a module: whether within such a forward
        self._followed: set[type] = set()  # classes whose method was replaced

    def has(self, child: torch.nn.Module) -> bool:
        """Whether the call of this module that is under way, in the frame above the caller's, is a part of another
        module's whose `forward` was called by itself. That one is told from the next call on."""
        frame = sys._getframe(2)
        known = self._callers.get(frame.f_code)
        if known is False:
            return False
        parent = _parent(frame, child)
        self._callers[frame.f_code] = parent is not None
        if parent is not None:
            self.follow(parent)
        return parent is not None

    def follow(self, module: torch.nn.Module) -> None:
        """Have calls of its class's `forward` told from now on."""
        owner = next(each for each in type(module).__mro__ if "forward" in vars(each))
        if owner is torch.nn.Module or owner in self._followed or not _of_its_class(module):
            return
        self._followed.add(owner)
        self._patches.replace(owner, "forward", _in_place_of(vars(owner)["forward"], self._told))


def _in_place_of(plain: FunctionType, told: Told) -> FunctionType:
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return told(plain, self, args, kwargs)

    # Among the program's globals: TorchScript looks there for the names that its source has, and who follows the code
    # of a model comes to the program's own by way of it.
    stand_in = FunctionType(forward.__code__, plain.__globals__, "forward", None, forward.__closure__)
    functools.update_wrapper(stand_in, plain)
    setattr(stand_in, STANDS_FOR, plain)
    return stand_in


def _parent(frame: FrameType | None, child: torch.nn.Module) -> torch.nn.Module | None:
    """The outermost module whose own `forward` is under way, and that holds this one; None where there is none, or
    somebody has put hooks on it, which a call of `forward` alone does not come to."""
    found = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if code is _CALLS_FORWARD:
            found = None  # by way of a decorator, perhaps
        elif code.co_name == "forward" and code.co_argcount:
            parent = frame.f_locals.get(code.co_varnames[0])
            if isinstance(parent, torch.nn.Module) and _is_forward(parent, code):
                found = parent
        frame = frame.f_back
    if found is None or own_hooks(found) or all(each is not child for each in found.modules()):
        return None
    return found


def _is_forward(module: torch.nn.Module, code: CodeType) -> bool:
    """Of its class, and not of a class that this derives from: that one is called by a method of the program's."""
    # `@torch.no_grad()` stands around many.
    return _of_its_class(module) and inspect.unwrap(type(module).forward).__code__ is code


def _of_its_class(module: torch.nn.Module) -> bool:
    """Whether its `forward` is a function in Python, of its class."""
    if isinstance(module, torch.jit.ScriptModule) or "forward" in vars(module):
        return False
    return isinstance(type(module).forward, FunctionType)
