"""Counts the floating-point operations and the bytes of every operator that PyTorch dispatches to.

Operations by the formulas of `torch.utils.flop_counter` (a multiplication and an addition are two), where it has one
for the operator, and one for each element of the result where the operator is known to compute one. Bytes are those of
all tensors that go in and come out, once each: what must be moved at the least, with an empty cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overdrive.seams.torch.internals import gradient_number, next_number, packet_of
from overdrive.worker.operators import flops_of

_BYTES_FREE = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "lift_fresh"))


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`place()` tells phase and module at the moment. Results in `cells`: [calls, operations, bytes]."""

    def __init__(self, place: Callable[[], tuple[str, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cells: dict[tuple[str, str, str], list[float]] = {}
        self.kinds: dict[str, float] = {}  # operations by the type of the numbers
        self.unknown: set[str] = set()  # matrix products in disguise that no formula is known for
        self._place = place
        self._modules: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        operator = packet_of(func).__name__
        name = f"{func.namespace}::{operator}"
        phase, module = self._place()
        number = gradient_number()
        if number is not None:
            module = self._modules.get(number, "")
            phase = "backward" if phase == "between" else phase
        else:
            # The first to come: operators that make no node, a batch norm's counter, say, find the last one's number.
            self._modules.setdefault(next_number() - 1, module)
        going_in = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        coming_out = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        known = flops_of(func, args, kwargs, result)
        if known is None and torch.Tag.pointwise in func.tags:
            known = sum(each.numel() for each in coming_out)
        operations = float(known or 0)
        if known is None and ("rnn" in name or "lstm" in name or name.endswith("mkldnn_linear")):
            self.unknown.add(name)
        moved = 0 if func.is_view or operator in _BYTES_FREE else _bytes(going_in) + _bytes(coming_out)
        cell = self.cells.setdefault((phase, module, name), [0, 0.0, 0.0])
        cell[0] += 1
        cell[1] += operations
        cell[2] += moved
        if operations and coming_out:
            kind = str(coming_out[0].dtype).removeprefix("torch.")
            self.kinds[kind] = self.kinds.get(kind, 0.0) + operations


def _bytes(tensors: list[torch.Tensor]) -> int:
    distinct = {id(each): each for each in tensors if each.layout is torch.strided}
    return sum(each.numel() * each.element_size() for each in distinct.values())
