"""Seam *convolution called*: `F.conv1d`, `F.conv2d` and what goes through them (`nn.Conv1d`, `nn.Conv2d`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import _builtins
from torch.nn import functional as F

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.convolution_called.wanted:
        return []
    known: list[int] = []
    for name in ("conv1d", "conv2d"):
        plain = getattr(torch, name)
        seen = _seen(hub, plain)
        for holder in (torch, F):
            patches.replace(holder, name, seen)
        _builtins._register_builtin(seen, f"aten::{name}")  # TorchScript knows operations by their identity
        known.append(id(seen))

    def forget() -> None:
        for each in known:
            _builtins._get_builtin_table().pop(each, None)  # type: ignore[no-untyped-call]

    return [forget]


def _seen(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    point = hub.convolution_called

    @functools.wraps(plain)
    def convolution(*args: Any, **kwargs: Any) -> Any:
        traced = torch.compiler.is_compiling() or torch._C._is_tracing()
        if len(args) < 2 or type(args[0]) is not torch.Tensor or traced:
            return plain(*args, **kwargs)
        answer = point.ask(plain, args, kwargs)
        return plain(*args, **kwargs) if answer is None else answer

    return convolution
