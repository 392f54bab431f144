"""Arguments and results of a call as a flat list of what is in them: tuples, lists, dicts, dataclasses, and the masks
that tensors of Keras carry."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.seams.keras.internals import mask_of, masked

Build = Callable[[Sequence[Any]], Any]  # makes the whole of such leaves


def flatten(thing: Any) -> tuple[list[Any], Build]:
    """The leaves, and what makes the same thing of others."""
    found, spec = tree_flatten(thing)
    leaves: list[Any] = []
    builds: list[tuple[int, Build | None]] = []
    for each in found:
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            inner, build = _fields(each)
        elif isinstance(each, torch.Tensor) and (mask := mask_of(each)) is not None:
            inner, build = [each, mask], _with_mask
        else:
            inner, build = [each], None
        leaves += inner
        builds.append((len(inner), build))
    if all(build is None for _, build in builds):
        return leaves, lambda others: tree_unflatten(list(others), spec)

    def together(others: Sequence[Any]) -> Any:
        made, place = [], 0
        for count, build in builds:
            own = others[place : place + count]
            made.append(own[0] if build is None else build(own))
            place += count
        return tree_unflatten(made, spec)

    return leaves, together


def _with_mask(leaves: Sequence[Any]) -> Any:
    tensor, mask = leaves
    return masked(tensor, mask)


def _fields(thing: Any) -> tuple[list[Any], Build]:
    names = [each.name for each in dataclasses.fields(thing) if hasattr(thing, each.name)]
    leaves, build = flatten([getattr(thing, name) for name in names])

    def again(others: Sequence[Any]) -> Any:
        made = copy.copy(thing)
        for name, value in zip(names, build(others), strict=True):
            object.__setattr__(made, name, value)
        return made

    return leaves, again
