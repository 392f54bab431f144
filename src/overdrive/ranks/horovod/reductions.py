"""Horovod's allreduce, in all its forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overdrive.ranks.horovod.compression import Compression
from overdrive.ranks.horovod.handles import Handle, asked, for_all, synchronize
from overdrive.ranks.horovod.requests import Request
from overdrive.ranks.horovod.world import global_process_set

__all__ = [
    *("Adasum", "Average", "Max", "Min", "Product", "Sum"),
    *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"),
    *("grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_"),
]

Average, Sum, Adasum, Min, Max, Product = "average", "sum", "adasum", "min", "max", "product"
_ALL = (Average, Sum, Min, Max, Product)
_TYPES = frozenset(
    (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.uint8, torch.int8, torch.int32, torch.int64),
    )
)  # that gloo sums: of another it says so within the exchange, when it is too late


def reduction(op: str | None, average: bool | None = None) -> str:
    """
    Raises:
        NotImplementedError: it is Adasum.
        ValueError: it is none of Horovod's, or both are given.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        op = Sum if average is False else Average
    if op == Adasum:
        raise NotImplementedError("Adasum is Horovod's own: Overdrive's interface has Average, Sum, Min, Max, Product.")
    if op not in _ALL:
        raise ValueError(f"{op!r} is no reduction of Horovod's")
    return op


def reduced(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Request:
    for_all(process_set)
    if tensor.dtype not in _TYPES or tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"Overdrive's Horovod interface reduces no tensors of {tensor.dtype}, {tensor.layout}."
        )
    settings = {"op": reduction(op, average), "before": float(prescale_factor), "after": float(postscale_factor)}
    return asked("allreduce", name, tensor, settings)


def allreduce_async_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Handle:
    """In its place. Arguments: `average`, `name`, `op`, `prescale_factor`, `postscale_factor`, `process_set`."""
    return Handle([reduced(tensor, *args, **kwargs)], lambda made: tensor)


def allreduce_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Handle:
    return allreduce_async_(tensor.detach().clone(), *args, **kwargs)


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return synchronize(allreduce_async_(tensor, *args, **kwargs))  # type: ignore[no-any-return]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    """Over all ranks' tensors of one shape; by default their mean. Has a gradient, reduced alike."""
    sent, context = compression.compress(tensor)
    op = reduction(op, average)
    made = _Reduced.apply(sent, name, op, prescale_factor, postscale_factor, process_set)  # type: ignore[no-untyped-call]
    return compression.decompress(made, context)  # type: ignore[no-any-return]


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, op: str, before: float, after: float, process_set: Any) -> Any:
        ctx.settings = op, before, after, process_set
        return synchronize(allreduce_async(tensor, None, name, op, before, after, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        op, before, after, process_set = ctx.settings
        made = allreduce(gradient, None, None, Compression.none, op, before, after, process_set)
        return made, None, None, None, None, None


def _named(tensors: Sequence[torch.Tensor], name: str | None) -> list[tuple[str | None, torch.Tensor]]:
    """Each tensor of a group with a name of its own, where the group has one."""
    return [(None if name is None else f"{name}.{place}", tensor) for place, tensor in enumerate(tensors)]


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None, *args: Any, **kwargs: Any
) -> Handle:
    requests = [reduced(tensor, average, own, *args, **kwargs) for own, tensor in _named(tensors, name)]
    return Handle(requests, list)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Handle:
    return grouped_allreduce_async_([each.detach().clone() for each in tensors], *args, **kwargs)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    return synchronize(grouped_allreduce_async_(tensors, *args, **kwargs))  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    rest = (compression, op, prescale_factor, postscale_factor, process_set)
    return [allreduce(tensor, average, own, *rest) for own, tensor in _named(tensors, name)]
