"""Arguments and results of a call as flat lists. Most are nothing but tensors, and PyTorch's trees would take longer to
take them apart and to compare than all else that a replayed call does on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

_LEAVES = frozenset((torch.Tensor, nn.Parameter, bool, int, float, str, type(None), torch.dtype, torch.device))


def flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The leaves, and a form that is equal for calls of one structure."""
    leaves = [*args, *kwargs.values()]
    for each in leaves:
        if type(each) not in _LEAVES:
            return tree_flatten((args, kwargs))
    return leaves, (len(args), *kwargs) if kwargs else len(args)


def unflattened(leaves: list[Any], form: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(form, int):
        return tuple(leaves), {}
    if isinstance(form, tuple):
        count = form[0]
        return tuple(leaves[:count]), dict(zip(form[1:], leaves[count:], strict=True))
    args, kwargs = tree_unflatten(leaves, form)
    return args, kwargs


def parts_of(result: Any) -> tuple[list[Any], Any]:
    return ([result], None) if type(result) is torch.Tensor else tree_flatten(result)


def result_of(parts: list[Any], form: Any) -> Any:
    return parts[0] if form is None else tree_unflatten(parts, form)
