"""Calls a model whose parameters are, for the length of the call, copies of themselves in another type.

What the program sees stays as it is: parameters, gradients, checkpoints and the optimizer's state are in the
program's own type, because each copy is made within the graph of the gradients. Copies are made anew for each
call: a program may write into `parameter.data`, of which nothing tells.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


def cast(thing: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """All tensors of type `old` in a structure as `new`, within the graph of their gradients."""
    return tree_map_only(torch.Tensor, lambda each: each.to(new) if each.dtype == old else each, thing)


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """By one kernel for all of a kind, outside of the graph of their gradients: `torch._foreach_clone`, which PyTorch
    2.11 lacks."""
    made = [torch.empty_like(each) for each in tensors]
    with torch.no_grad():
        if made:
            torch._foreach_copy_(made, list(tensors))
    return made


class Copies:
    """`keep`: modules whose own parameters and buffers stay as they are."""

    def __init__(self, old: torch.dtype, new: torch.dtype, keep: Callable[[Any], bool] = lambda module: False) -> None:
        self.written = ""  # why no more calls must be made so: a model has written into what is only a copy
        self._old = old
        self._new = new
        self._keep = keep
        self._compared: weakref.WeakSet[Any] = weakref.WeakSet()

    def call(self, model: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's result in the program's own type."""
        with self._exchanged(model):
            result = call(*cast(args, self._old, self._new), **cast(kwargs, self._old, self._new))
        return cast(result, self._new, self._old)

    @contextmanager
    def _exchanged(self, model: Any) -> Iterator[None]:
        holders = [module for module in model.modules() if not self._keep(module)]
        kept = {id(each) for module in model.modules() if self._keep(module) for each in module._parameters.values()}
        parameters = self._distinct(each for module in holders for each in module._parameters.values())
        parameters = [each for each in parameters if id(each) not in kept]  # tied to one that must stay
        copies = {id(each): copy for each, copy in zip(parameters, self._copied(parameters), strict=True)}
        versions = {id(each): copies[id(each)]._version for each in parameters}
        buffers = self._distinct(each for module in holders for each in module._buffers.values())
        values = {id(each): each.to(self._new) for each in buffers}
        counts = {id(each): values[id(each)]._version for each in buffers}
        places = [
            (table, name, each, new)
            for module in holders
            for table, found in ((module._parameters, copies), (module._buffers, values))
            for name, each in table.items()
            if each is not None and (new := found.get(id(each))) is not None
        ]
        try:
            for table, name, _, new in places:
                table[name] = new
            yield
        finally:
            for table, name, each, new in places:
                if table[name] is new:
                    table[name] = each
                elif table[name] is not None:  # the model has put another buffer in its place
                    table[name] = cast(table[name], self._new, self._old)
            with torch.no_grad():
                for each in buffers:
                    if values[id(each)]._version != counts[id(each)]:
                        each.copy_(values[id(each)])
        compare = model not in self._compared  # once: a write into `weight.data` leaves no other trace
        self._compared.add(model)
        for each in parameters:
            copy = copies[id(each)]
            if copy._version != versions[id(each)] or (compare and not torch.equal(copy, each.to(self._new))):
                self.written = "the model changes its weights while it is called"

    def _distinct(self, tensors: Iterable[Any]) -> list[torch.Tensor]:
        return list({id(each): each for each in tensors if each is not None and each.dtype == self._old}.values())

    def _copied(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        trained = [each for each in parameters if each.requires_grad]  # of the others no gradient must be made
        cast_ones = iter(_Cast.apply(self._new, *trained) if trained else ())  # type: ignore[no-untyped-call]
        return [next(cast_ones) if each.requires_grad else each.to(self._new) for each in parameters]


class _Cast(torch.autograd.Function):
    """All copies at once: one launch for many small parameters."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # a parameter that was not used has no gradient, rather than zeros
        ctx.dtype = tensors[0].dtype
        copies = [torch.empty_like(each, dtype=dtype) for each in tensors]
        torch._foreach_copy_(copies, list(tensors))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *(None if each is None else each.to(ctx.dtype) for each in gradients))
