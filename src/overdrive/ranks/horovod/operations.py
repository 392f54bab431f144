"""Horovod's operations on tensors: at once, or asked for now and waited for later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import torch

from overdrive.ranks.horovod.compression import Compression
from overdrive.ranks.horovod.coordinator import JOIN
from overdrive.ranks.horovod.requests import Request
from overdrive.ranks.horovod.world import global_process_set, rank, size, world

__all__ = [
    *("Adasum", "Average", "Max", "Min", "Product", "Sum"),
    *("allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall"),
    *("alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_"),
    *("grouped_allreduce_async", "grouped_allreduce_async_", "join", "poll", "reducescatter", "reducescatter_async"),
    *("synchronize",),
]

Average, Sum, Adasum, Min, Max, Product = "average", "sum", "adasum", "min", "max", "product"
_ALL = (Average, Sum, Min, Max, Product)
_numbers: dict[str, Any] = {}  # of requests without a name, by kind: the same on all ranks that ask alike


class Handle:
    """What was asked for. `made`: what of a request's result is the program's."""

    def __init__(self, requests: Sequence[Request], made: Any) -> None:
        self.requests, self.made = requests, made


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return all(each.done.is_set() for each in handle.requests)


def synchronize(handle: Handle) -> Any:
    """Wait for what was asked for, and return it.

    Raises:
        HorovodInternalError: ranks ask for different things under its name.
    """
    return handle.made([world().coordinator.wait(each) for each in handle.requests])


def _asked(kind: str, name: str | None, *details: Any) -> Request:
    if name is None:
        name = f"noname.{next(_numbers.setdefault(kind, count()))}"
    name = kind if kind == JOIN else f"{kind}.{name}"
    return world().coordinator.ask(Request(name, kind, *details))


def _for_all(process_set: Any) -> None:
    if process_set is not global_process_set:
        raise NotImplementedError("Overdrive's Horovod interface has no process sets but that of all ranks.")


def _only(made: list[Any]) -> Any:
    return made[0]


# -- allreduce ----------------------------------------------------------------------------------


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


def _reduced(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Request:
    _for_all(process_set)
    if tensor.dtype is torch.bool or tensor.dtype.is_complex or tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"Overdrive's Horovod interface reduces no tensors of {tensor.dtype}, {tensor.layout}."
        )
    settings = {"op": reduction(op, average), "before": float(prescale_factor), "after": float(postscale_factor)}
    return _asked("allreduce", name, tensor, settings)


def allreduce_async_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Handle:
    """In its place. Arguments: `average`, `name`, `op`, `prescale_factor`, `postscale_factor`, `process_set`."""
    return Handle([_reduced(tensor, *args, **kwargs)], lambda made: tensor)


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


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None, *args: Any, **kwargs: Any
) -> Handle:
    names = [None if name is None else f"{name}.{each}" for each in range(len(tensors))]
    requests = [_reduced(tensor, average, own, *args, **kwargs) for tensor, own in zip(tensors, names, strict=True)]
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
    names = [None if name is None else f"{name}.{each}" for each in range(len(tensors))]
    rest = (compression, op, prescale_factor, postscale_factor, process_set)
    return [allreduce(tensor, average, own, *rest) for tensor, own in zip(tensors, names, strict=True)]


# -- the others ---------------------------------------------------------------------------------


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> Handle:
    """Along the first dimension, in which ranks may differ."""
    _for_all(process_set)
    sent = tensor.detach()
    return Handle([_asked("allgather", name, sent if sent.dim() else sent.reshape(1))], _only)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> torch.Tensor:
    return _Gathered.apply(tensor, name, process_set)  # type: ignore[no-untyped-call, no-any-return]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, process_set: Any) -> Any:
        ctx.shape = tensor.shape
        return synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        own = ctx.shape[0] if ctx.shape else 1
        rows = allgather(torch.tensor([own])).tolist()
        mine = allreduce(gradient, op=Average).split(rows)[rank()]  # type: ignore[no-untyped-call]
        return mine.reshape(ctx.shape), None, None


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    handles = [
        allgather_async(tensor, None if name is None else f"{name}.{each}", process_set)
        for each, tensor in enumerate(tensors)
    ]
    return Handle([request for each in handles for request in each.requests], list)


def grouped_allgather(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    return synchronize(grouped_allgather_async(tensors, *args, **kwargs))  # type: ignore[no-any-return]


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    _for_all(process_set)
    if not 0 <= root_rank < size():
        raise ValueError(f"There is no rank {root_rank} of {size()} to broadcast from.")
    return Handle([_asked("broadcast", name, tensor, {"root": root_rank})], _only)


def broadcast_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Handle:
    return broadcast_async_(tensor.detach().clone(), *args, **kwargs)


def broadcast_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return synchronize(broadcast_async_(tensor, *args, **kwargs))  # type: ignore[no-any-return]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    return _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call, no-any-return]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: int, name: Any, process_set: Any) -> Any:
        ctx.root = root_rank
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        made = allreduce(gradient, op=Average)
        return made if rank() == ctx.root else torch.zeros_like(made), None, None, None


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """`splits`: how many rows go to each rank; by default as many to each. With them, also those that came."""
    _for_all(process_set)
    if splits is None:
        if len(tensor) % size():
            raise ValueError(f"{len(tensor)} rows cannot be dealt evenly to {size()} ranks: give splits.")
        own = [len(tensor) // size()] * size()
    else:
        own = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
    if len(own) != size() or sum(own) != len(tensor):
        raise ValueError(f"splits {own} are not those of {len(tensor)} rows to {size()} ranks.")
    request = _asked("alltoall", name, tensor.detach(), {}, own)
    if splits is None:
        return Handle([request], lambda made: made[0][0])
    return Handle([request], lambda made: (made[0][0], torch.tensor(made[0][1], dtype=torch.int32)))


def alltoall(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Has no gradient.

    Raises:
        NotImplementedError: the tensor wants one.
    """
    _without_gradient("alltoall", tensor)
    return synchronize(alltoall_async(tensor, *args, **kwargs))


def reducescatter_async(
    tensor: torch.Tensor,
    op: str = Average,
    name: str | None = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """This rank's rows of the reduced tensor; the first ranks have one more where they do not come out even."""
    if reduction(op) not in (Average, Sum):
        raise ValueError("reducescatter has Average and Sum.")
    name = None if name is None else f"reducescatter.{name}"
    request = _reduced(tensor.detach().clone(), None, name, op, prescale_factor, postscale_factor, process_set)
    each, more = divmod(len(tensor), size())
    rows = [each + (other < more) for other in range(size())]
    return Handle([request], lambda made: made[0].split(rows)[rank()].clone())


def reducescatter(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Has no gradient.

    Raises:
        NotImplementedError: the tensor wants one.
    """
    _without_gradient("reducescatter", tensor)
    return synchronize(reducescatter_async(tensor, *args, **kwargs))  # type: ignore[no-any-return]


def _without_gradient(what: str, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            f"{what} has no gradient in Overdrive's Horovod interface: give it a detached tensor."
        )


def barrier(process_set: Any = global_process_set) -> None:
    _for_all(process_set)
    world().coordinator.wait(_asked("barrier", None))


def join(device: int = -1) -> int:
    """Wait until all ranks have joined; until then others' allreduce has zeros of this one.

    Returns:
        The rank that joined last.
    """
    last = int(world().coordinator.wait(_asked(JOIN, None)))
    _numbers.clear()  # ranks that joined early have asked for less
    return last
