"""The functions that a script calls between its model's call and its optimizer's step, as PyTorch tells of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from overdrive.seams.torch.functions import push, remove
from overdrive.seams.torch.internals import beside_the_program

# Told of a tensor without its content.
_PROPERTIES = ("shape", "dtype", "device", "layout", "ndim", "is_cuda", "is_cpu", "requires_grad", "itemsize", "nbytes")
_METHODS = ("size", "dim", "numel", "nelement", "ndimension", "stride", "element_size", "is_floating_point", "__len__")


class ToldFunctions(TorchFunctionMode):
    """In force from `begin` to `end`, in one thread."""

    def __init__(self, tell: Callable[[Any, Any, Any], Any]) -> None:
        self._tell = tell
        self.in_force = False
        self._thread = self._process = 0
        asked = [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES if hasattr(torch.Tensor, name)]
        asked += [getattr(torch.Tensor, name) for name in _METHODS]
        # Those that compute nothing and look at no content.
        self.harmless = frozenset((*asked, torch.numel, *beside_the_program()))

    @property
    def elsewhere(self) -> bool:
        """Whether it is in force in another thread, or was when this process was forked."""
        return self.in_force and (self._thread != threading.get_ident() or self._process != os.getpid())

    def begin(self) -> None:
        self._thread, self._process = threading.get_ident(), os.getpid()
        push(self)
        self.in_force = True

    def end(self) -> None:
        if self.in_force:
            self.in_force = False
            remove(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._process != os.getpid():  # a worker of a loader, say, that was started in the midst of a step
            return func(*args, **(kwargs or {}))
        return self._tell(func, args, kwargs or {})
