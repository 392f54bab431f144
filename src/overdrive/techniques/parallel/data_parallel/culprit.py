"""Which module looks at more than its own sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Alike = Callable[[torch.Tensor, torch.Tensor], bool]


def culprit(model: torch.nn.Module, make: Callable[[int | None], None], parts: int, alike: Alike) -> str:
    """The first module, in the order of their ends, whose results for parts do not make up that for the whole.

    Args:
        make: makes the call on the part of a rank, or whole for None.
    """
    inner = [(name, each) for name, each in model.named_modules() if name]
    if not inner or isinstance(model, torch.jit.ScriptModule):
        return ""
    made: list[list[tuple[str, torch.Tensor]]] = []

    def hook(name: str) -> Any:
        def ends(module: Any, args: Any, result: Any) -> None:
            if isinstance(result, torch.Tensor):
                made[-1].append((name, result.detach().clone()))

        return ends

    handles = [each.register_forward_hook(hook(name)) for name, each in inner]
    try:
        for rank in (None, *range(parts)):
            made.append([])
            make(rank)
    except Exception:  # it says nothing, then
        return ""
    finally:
        for handle in handles:
            handle.remove()
    for (name, whole), *others in zip(*made, strict=False):
        tensors = [each for _, each in others]
        if {name} != {other for other, _ in others} or not _make_up(whole, tensors, alike):
            return f"{name}, a {type(dict(inner)[name]).__name__}"
    return ""


def _make_up(whole: torch.Tensor, parts: list[torch.Tensor], alike: Alike) -> bool:
    if all(each.shape == whole.shape for each in parts):
        return all(alike(each, whole) for each in parts)
    dims = [dim for dim in range(whole.dim()) if dim < parts[0].dim() and parts[0].shape[dim] != whole.shape[dim]]
    try:
        return len(dims) == 1 and alike(torch.cat(parts, dims[0]), whole)
    except RuntimeError:
        return False
