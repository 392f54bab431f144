"""What all ranks are to have from one: parameters, an optimizer's state, objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from overdrive.ranks.horovod.handles import synchronize
from overdrive.ranks.horovod.operations import allgather, broadcast_, broadcast_async_
from overdrive.ranks.horovod.world import global_process_set, rank, size

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: Any = global_process_set
) -> None:
    """In their place: a `state_dict`, or what `named_parameters` or `parameters` gives. What is no tensor is left.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(params, Mapping):
        named: list[tuple[str | None, Any]] = list(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (torch.Tensor, str)):
        named = [each if isinstance(each, tuple) and len(each) == 2 else (None, each) for each in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = [
        broadcast_async_(tensor.detach(), root_rank, name, process_set)
        for name, tensor in named
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """The root's object; pickled, as between processes of one program."""
    name = name or "object"  # and not its type, as in Horovod: ranks that have None until then would wait for ever
    data = _pickled(obj) if rank() == root_rank else torch.zeros(0, dtype=torch.uint8)
    length = broadcast_(torch.tensor([len(data)]), root_rank, f"{name}.size", process_set).tolist()[0]
    if rank() != root_rank:
        data = torch.zeros(length, dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name}.data", process_set)
    return obj if rank() == root_rank else _unpickled(data)


def allgather_object(obj: Any, name: str | None = None, process_set: Any = global_process_set) -> list[Any]:
    """Each rank's object, by rank."""
    name = name or "object"
    data = _pickled(obj)
    sizes = allgather(torch.tensor([len(data)]), f"{name}.size", process_set).tolist()
    whole = allgather(data, f"{name}.data", process_set)
    return [_unpickled(part) for part in whole.split(sizes)]  # type: ignore[no-untyped-call]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: Any = global_process_set
) -> None:
    """Learning rates, momenta and all else that `state_dict` has.

    Raises:
        ValueError: for LBFGS, which keeps its state otherwise.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    if size() == 1:
        return
    told = broadcast_object(_on_cpu(optimizer.state_dict()), root_rank, "optimizer_state", process_set)
    if rank() != root_rank:
        groups = optimizer.param_groups
        optimizer.load_state_dict(told)  # which moves it to where the parameters are, and makes its groups anew
        # A schedule, or the optimizer that was wrapped, goes on with those that were there.
        for held, made in zip(groups, optimizer.param_groups, strict=True):
            held.clear()
            held.update(made)
        optimizer.param_groups = groups


def _on_cpu(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return thing.cpu()
    if isinstance(thing, dict):
        return {key: _on_cpu(value) for key, value in thing.items()}
    return type(thing)(map(_on_cpu, thing)) if type(thing) in (list, tuple) else thing


def _pickled(thing: Any) -> torch.Tensor:
    """By cloudpickle where it is installed, as Horovod does, which brings it along: a function of the program's too."""
    try:
        import cloudpickle as pickling
    except ImportError:
        pickling = pickle
    return torch.frombuffer(bytearray(pickling.dumps(thing)), dtype=torch.uint8)


def _unpickled(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
