"""Seam *ReLU called*: `torch.relu`, `Tensor.relu` and what goes through them (`F.relu`, `nn.ReLU`), in place or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import _builtins
from torch.nn import functional as F

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.deferred import compute


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.relu_called.wanted:
        return []
    known: list[int] = []
    for holder in (torch, torch.Tensor):
        for name, in_place in (("relu", False), ("relu_", True)):
            plain = getattr(holder, name)
            seen = _seen(hub, plain, in_place)
            patches.replace(holder, name, seen)
            if name in vars(F) and vars(F)[name] is plain:
                patches.replace(F, name, seen)
            if holder is torch:  # TorchScript knows operations by the identity of their functions
                _builtins._register_builtin(seen, f"aten::{name}")
                known.append(id(seen))

    plain_apply = torch.autograd.Function.__dict__["apply"].__func__

    @functools.wraps(plain_apply)
    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        compute((args, kwargs))  # a custom function takes its tensors in C, unseen
        return plain_apply(function, *args, **kwargs)

    patches.replace(torch.autograd.Function, "apply", classmethod(apply))

    def forget() -> None:
        for each in known:
            _builtins._get_builtin_table().pop(each, None)  # type: ignore[no-untyped-call]

    return [forget]


def _seen(hub: Seams, plain: Callable[..., Any], in_place: bool) -> Callable[..., Any]:
    point = hub.relu_called

    @functools.wraps(plain)
    def relu(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 1 or type(args[0]) is not torch.Tensor or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        answer = point.ask(args[0], in_place)
        return plain(args[0]) if answer is None else answer

    return relu
