"""Which module looks at more than its own sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.keras.layers_on_torch import named_modules

Alike = Callable[[torch.Tensor, torch.Tensor], bool]
_Call = tuple[str, torch.Tensor | None, torch.Tensor]  # a module's name, what it was given first, what it made


def culprit(model: torch.nn.Module, make: Callable[[int | None], None], parts: int, alike: Alike) -> str:
    """The first module, in the order of their ends, that makes of parts another thing than of the whole.

    Args:
        make: makes the call on the part of a rank, or whole for None, and puts all back, hooks too.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return ""
    kinds = {name: type(each).__name__ for name, each in named_modules(model)}
    try:
        made = [_calls(model, lambda rank=rank: make(rank)) for rank in (None, *range(parts))]  # type: ignore[misc]
    except Exception:  # it says nothing, then
        return ""
    for (name, given, result), *others in zip(*made, strict=False):
        if {name} != {other for other, _, _ in others}:
            return ""
        inputs = [each for _, each, _ in others]
        if given is not None and not _make_up(given, [each for each in inputs if each is not None], alike):
            return f"what it gives to {name}"
        if not _make_up(result, [each for _, _, each in others], alike):
            return f"{name}, a {kinds[name]}"
    return ""


def _calls(model: torch.nn.Module, make: Callable[[], None]) -> list[_Call]:
    found: list[_Call] = []

    def hook(name: str) -> Any:
        def ends(module: Any, args: Any, result: Any) -> None:
            if isinstance(result, torch.Tensor):
                given = args[0].detach().clone() if args and isinstance(args[0], torch.Tensor) else None
                found.append((name, given, result.detach().clone()))

        return ends

    handles = [each.register_forward_hook(hook(name)) for name, each in named_modules(model) if name]
    try:
        make()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _make_up(whole: torch.Tensor, parts: list[torch.Tensor], alike: Alike) -> bool:
    if not parts or all(each.shape == whole.shape for each in parts):
        return all(alike(each, whole) for each in parts)
    dims = [dim for dim in range(whole.dim()) if dim < parts[0].dim() and parts[0].shape[dim] != whole.shape[dim]]
    try:
        return len(dims) == 1 and alike(torch.cat(parts, dims[0]), whole)
    except RuntimeError:
        return False
