"""Seam *model called*: the outermost `nn.Module.__call__`.

A first call of each kind (module, training or evaluation, shapes) is a rehearsal: should it fail with
our techniques in place, they are left out, random states and buffers are put back, and the program's own
call is made. So a model that, say, calls `.view()` under channels_last runs on as its author wrote it.

What is called inside a backward pass is no call of the program's: there, activations are made again. Nor is a module
without parameters that is called while samples are fetched: it is a transform (torchvision's are modules).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from overdrive.core.rng import States
from overdrive.seams.hub import Seams, reason_of
from overdrive.seams.patch import Patches
from overdrive.seams.torch import fetches
from overdrive.seams.torch.internals import in_backward

# Past this many kinds of call (sequence lengths, say) rehearsing costs more than it protects.
_MOST_REHEARSALS = 64


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.model_called.wanted:
        return []
    plain = torch.nn.Module.__call__
    inside = threading.local()
    rehearsed: dict[Any, set[str]] = {}  # by kind of call: the techniques that it was rehearsed with

    @functools.wraps(plain)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(inside, "model", False):
            return plain(self, *args, **kwargs)
        if not hub.model_called.subscribers or in_backward():
            return plain(self, *args, **kwargs)
        if _shapes_only(args) or _is_transform(self):
            return plain(self, *args, **kwargs)
        inside.model = True
        try:
            call = functools.partial(plain, self)
            techniques = hub.model_called.techniques()
            if not techniques or len(rehearsed) >= _MOST_REHEARSALS:
                return hub.model_called.run(self, call, *args, **kwargs)
            known = rehearsed.setdefault(_kind(self, args, kwargs), set())
            if known.issuperset(techniques):  # one that was off till now is new here
                return hub.model_called.run(self, call, *args, **kwargs)
            known.update(techniques)
            return _rehearse(hub, self, call, args, kwargs)
        finally:
            inside.model = False

    fetches.enter(patches)
    patches.replace(torch.nn.Module, "__call__", __call__)
    return []


def _rehearse(hub: Seams, module: torch.nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    states = States.now()
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        return hub.model_called.run(module, call, *args, **kwargs)
    except Exception as error:
        failure = error
    states.restore()
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for name in hub.model_called.techniques():
        hub.leave_out(name, f"the model's call failed with it ({reason_of(failure)})")
    return call(*args, **kwargs)  # raises the program's own error where the techniques were innocent


def _is_transform(module: torch.nn.Module) -> bool:
    return fetches.under_way() and next(module.parameters(), None) is None


def _shapes_only(given: Any) -> bool:
    """Whether the first thing given has no data: the model is called to learn its shapes (Keras does, on PyTorch)."""
    while isinstance(given, (list, tuple, dict)) and given:
        given = next(iter(given.values() if isinstance(given, dict) else given))
    keras = sys.modules.get("keras")
    if isinstance(given, torch.Tensor):
        return given.is_meta
    return hasattr(keras, "KerasTensor") and isinstance(given, keras.KerasTensor)  # type: ignore[union-attr]


def _kind(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shapes = tuple(
        (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)
        for value in (*args, *kwargs.values())
    )
    return id(module), module.training, torch.is_grad_enabled(), shapes
