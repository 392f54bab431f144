"""A device without hardware: its tensors are marked by their memory, and compute on the CPU.

What a GPU refuses, it refuses: below autograd, in every operation of forward, backward and optimizer, a tensor that
lives there may not meet one that lives here, single numbers in elementwise operations and copies excepted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
ACROSS = {aten.copy_.default, aten._to_copy.default, aten.set_.source_Tensor, aten.lift_fresh.default}
LENGTHS = {aten._pack_padded_sequence.default}


class There(TorchDispatchMode):
    """The place, and the law of it while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._marked: dict[int, StorageWeakRef] = {}
        self.sent = 0
        self.brought = 0
        self.operations = 0  # that ran there

    def has(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        mark = self._marked.get(tensor.untyped_storage()._cdata)
        return mark is not None and not mark.expired()

    def mark(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._marked[storage._cdata] = StorageWeakRef(storage)
        if len(self._marked) % 4096 == 0:
            self._marked = {place: mark for place, mark in self._marked.items() if not mark.expired()}

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        self.sent += 1
        return Crossing.apply(tensor, self, True)  # type: ignore[no-any-return,no-untyped-call]

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        self.brought += 1
        return Crossing.apply(tensor, self, False)  # type: ignore[no-any-return,no-untyped-call]

    def as_on_cpu(self, text: str) -> str:
        return text

    def made_there(self) -> AbstractContextManager[Any]:
        return Made(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        there = [each for each in tensors if self.has(each)]
        if there and func not in ACROSS:
            self.operations += 1
            self._refuse(func, args, tensors)
        result = func(*args, **kwargs)
        if there and func is aten.copy_.default and torch._C._current_graph_task_id() != -1:
            self.mark(args[0])  # what a backward pass in C++ makes, it makes with the gradient's own options
        if there and not (func in ACROSS and args and not self.has(args[0])):
            for each in tree_leaves(result):
                if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                    self.mark(each)
        return result

    def _refuse(self, func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
        if func in LENGTHS:
            if self.has(args[1]):
                raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
            return
        numbers = torch.Tag.pointwise in func.tags
        for each in tensors:
            if not self.has(each) and not (numbers and each.dim() == 0):
                shapes = ", ".join(f"{tuple(one.shape)} {'there' if self.has(one) else 'here'}" for one in tensors)
                raise RuntimeError(f"Expected all tensors to be on the same device, in {func}: {shapes}")


class Crossing(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, place: There, there: bool) -> torch.Tensor:
        context.place, context.there = place, there
        with _disable_current_modes():
            copy = tensor.detach().clone()
        if there:
            place.mark(copy)
        return copy

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        with _disable_current_modes():
            back = gradient.clone()
        if not context.there:
            context.place.mark(back)
        return back, None, None


class Made(TorchDispatchMode):
    """Factories inside it make their tensors there."""

    def __init__(self, place: There) -> None:
        super().__init__()
        self._place = place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._place.mark(each)
        return result
