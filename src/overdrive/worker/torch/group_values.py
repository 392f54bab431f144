"""What optimizers set in their groups while they step: Prodigy's estimate of a rate, the steps that others count there.

A rate that the program or its schedule sets is none of it: every run of a program sets the same, and whether it does is
compared by itself.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

import torch

from overdrive.seams.torch.internals import version_of

Told: TypeAlias = list[dict[str, Any]]  # of each group, by name


class GroupValues:
    """Learns from an optimizer's steps which names these are."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self._before: weakref.WeakKeyDictionary[Any, list[dict[str, Any]]] = weakref.WeakKeyDictionary()

    def begins(self, optimizer: Any) -> None:
        """A step of it."""
        self._before[optimizer] = _marks(optimizer)

    def ends(self, optimizer: Any) -> None:
        for before, after in zip(self._before.pop(optimizer, ()), _marks(optimizer), strict=False):
            changed = {name for name, mark in after.items() if before.get(name) != mark}
            self._names.setdefault(optimizer, set()).update(changed)

    def told(self, optimizer: Any) -> Told:
        names = self._names.get(optimizer, ())
        return [{name: _plain(group[name]) for name in names if name in group} for group in optimizer.param_groups]

    @staticmethod
    def put(optimizer: Any, told: Told) -> None:
        for group, values in zip(optimizer.param_groups, told, strict=False):
            for name, value in values.items():
                there = group.get(name)
                if isinstance(value, torch.Tensor) and isinstance(there, torch.Tensor) and there.shape == value.shape:
                    there.copy_(value)
                else:
                    group[name] = value


def _marks(optimizer: Any) -> list[dict[str, Any]]:
    """What tells whether a number is another one, or a tensor was written to."""
    return [
        {
            name: (id(value), version_of(value)) if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if isinstance(value, (bool, int, float, torch.Tensor))
        }
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
