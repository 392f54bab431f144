"""Horovod's operations on tensors: at once, or asked for now and waited for later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.ranks.horovod import handles, reductions
from overdrive.ranks.horovod.compression import Compression
from overdrive.ranks.horovod.coordinator import JOIN
from overdrive.ranks.horovod.handles import *  # noqa: F403
from overdrive.ranks.horovod.handles import Handle, asked, count_anew, for_all, only, synchronize
from overdrive.ranks.horovod.reductions import *  # noqa: F403
from overdrive.ranks.horovod.reductions import Average, Sum, allreduce, reduced, reduction
from overdrive.ranks.horovod.world import global_process_set, rank, size, world

__all__ = [
    *handles.__all__,
    *reductions.__all__,
    *("allgather", "allgather_async", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_"),
    *("broadcast_async", "broadcast_async_", "grouped_allgather", "grouped_allgather_async", "grouped_reducescatter"),
    *("grouped_reducescatter_async", "join", "reducescatter", "reducescatter_async", "sparse_allreduce_async"),
]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> Handle:
    """Along the first dimension, in which ranks may differ."""
    for_all(process_set)
    sent = tensor.detach()
    return Handle([asked("allgather", name, sent if sent.dim() else sent.reshape(1))], only)


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


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = global_process_set
) -> list[torch.Tensor]:
    return [
        allgather(tensor, None if name is None else f"{name}.{each}", process_set)
        for each, tensor in enumerate(tensors)
    ]


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    for_all(process_set)
    if not 0 <= root_rank < size():
        raise ValueError(f"There is no rank {root_rank} of {size()} to broadcast from.")
    return Handle([asked("broadcast", name, tensor, {"root": root_rank})], only)


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
    """Its result is what came, and how many rows from each rank.

    Args:
        splits: how many rows go to each rank; by default as many to each.
    """
    for_all(process_set)
    if splits is None:
        if len(tensor) % size():
            raise ValueError(f"{len(tensor)} rows cannot be dealt evenly to {size()} ranks: give splits.")
        own = [len(tensor) // size()] * size()
    else:
        own = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
    if len(own) != size() or sum(own) != len(tensor):
        raise ValueError(f"splits {own} are not those of {len(tensor)} rows to {size()} ranks.")
    request = asked("alltoall", name, tensor.detach(), {}, own)
    return Handle([request], lambda made: (made[0][0], torch.tensor(made[0][1], dtype=torch.int32)))


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """What came; where `splits` are given, also how many rows from each rank."""
    came, rows = _Dealt.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return came if splits is None else (came, rows)


class _Dealt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, name: Any, process_set: Any) -> Any:
        came, ctx.rows = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.mark_non_differentiable(ctx.rows)
        return came, ctx.rows

    @staticmethod
    def backward(ctx: Any, gradient: Any, *of_rows: Any) -> Any:
        return alltoall(gradient.contiguous(), ctx.rows)[0], None, None, None


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: str = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """This rank's rows of the reduced tensor; the first ranks have one more where they do not come out even."""
    if reduction(op) not in (Average, Sum):
        raise ValueError("reducescatter has Average and Sum.")
    name = None if name is None else f"reducescatter.{name}"
    request = reduced(tensor.detach().clone(), None, name, op, prescale_factor, postscale_factor, process_set)
    each, more = divmod(len(tensor), size())
    rows = [each + (other < more) for other in range(size())]
    return Handle([request], lambda made: made[0].split(rows)[rank()].clone())


def reducescatter(
    tensor: torch.Tensor, name: str | None = None, compression: Any = Compression.none, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Has no gradient.

    Raises:
        NotImplementedError: the tensor wants one.
    """
    _wants_no_gradient(tensor)
    sent, context = compression.compress(tensor)
    return compression.decompress(synchronize(reducescatter_async(sent, name, *args, **kwargs)), context)  # type: ignore[no-any-return]


def _wants_no_gradient(tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "reducescatter has no gradient in Overdrive's Horovod interface: give it a detached tensor."
        )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, *args: Any, **kwargs: Any
) -> Handle:
    handles = [
        reducescatter_async(tensor, None if name is None else f"{name}.{place}", *args, **kwargs)
        for place, tensor in enumerate(tensors)
    ]
    requests = [request for each in handles for request in each.requests]
    return Handle(requests, lambda made: [each.made([result]) for each, result in zip(handles, made, strict=True)])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    *args: Any,
    **kwargs: Any,
) -> list[torch.Tensor]:
    """Has no gradient.

    Raises:
        NotImplementedError: one of the tensors wants one.
    """
    for each in tensors:
        _wants_no_gradient(each)
    compressed = [compression.compress(each.detach()) for each in tensors]
    made = synchronize(grouped_reducescatter_async([sent for sent, _ in compressed], name, *args, **kwargs))
    return [compression.decompress(each, context) for each, (_, context) in zip(made, compressed, strict=True)]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: str, process_set: Any = global_process_set
) -> Callable[[], torch.Tensor]:
    """Call it for the result: all ranks' entries, where what stands twice is summed."""
    own = tensor.coalesce()
    places = allgather_async(own.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(own.values(), f"{name}.values", process_set)

    def made() -> torch.Tensor:
        there, found = synchronize(places).t(), synchronize(values)
        return torch.sparse_coo_tensor(there, found / size() if op == Average else found, own.shape).coalesce()

    return made


def barrier(process_set: Any = global_process_set) -> None:
    for_all(process_set)
    world().coordinator.wait(asked("barrier", None))


def join(device: int = -1) -> int:
    """Wait until all ranks have joined; until then others' allreduce has zeros of this one.

    Returns:
        The rank that joined last.
    """
    last = int(world().coordinator.wait(asked(JOIN, None)))
    count_anew()
    return last
