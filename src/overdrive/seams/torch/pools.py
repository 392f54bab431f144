"""Seam *max pool called*: `torch.max_pool2d` and what goes through it (`F.max_pool2d`, `nn.MaxPool2d`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import _builtins

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.tracing import traced


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.max_pool_called.wanted:
        return []
    seen = _seen(hub, torch.max_pool2d)
    patches.replace(torch, "max_pool2d", seen)
    _builtins._register_builtin(seen, "aten::max_pool2d")  # TorchScript knows operations by their identity

    def forget() -> None:
        _builtins._get_builtin_table().pop(id(seen), None)  # type: ignore[no-untyped-call]

    return [forget]


def _seen(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    point = hub.max_pool_called

    @functools.wraps(plain)
    def max_pool2d(*args: Any, **kwargs: Any) -> Any:
        if not args or type(args[0]) is not torch.Tensor or traced():
            return plain(*args, **kwargs)
        answer = point.ask(plain, args, kwargs)
        return plain(*args, **kwargs) if answer is None else answer

    return max_pool2d
