"""Arguments and results of a call as flat lists. Most are nothing but tensors, and PyTorch's trees would take longer to
take them apart and to compare than all else that a replayed call does on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

_LEAVES = frozenset((torch.Tensor, nn.Parameter, bool, int, float, str, type(None)))


def flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The leaves, and a form that is equal for calls of one structure."""
    if not kwargs and all(type(each) in _LEAVES for each in args):
        return list(args), len(args)
    return tree_flatten((args, kwargs))


def unflattened(leaves: list[Any], form: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(form, int):
        return tuple(leaves), {}
    args, kwargs = tree_unflatten(leaves, form)
    return args, kwargs


def parts_of(result: Any) -> tuple[list[Any], Any]:
    return ([result], None) if type(result) is torch.Tensor else tree_flatten(result)


def result_of(parts: list[Any], form: Any) -> Any:
    return parts[0] if form is None else tree_unflatten(parts, form)
