"""Horovod's elastic interface, for a number of ranks that does not change: nothing is lost, and nobody joins."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from overdrive.ranks.horovod.objects import allgather_object, broadcast_object, broadcast_optimizer_state
from overdrive.ranks.horovod.objects import broadcast_parameters as _broadcast
from overdrive.ranks.horovod.world import init, is_initialized, rank, size

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """`func(state, ...)`, once all ranks have rank 0's state. Where a rank fails, the run ends, with its reason."""

    @functools.wraps(func)
    def called(state: State, *args: Any, **kwargs: Any) -> Any:
        if not is_initialized():
            init()
        state.sync()
        return func(state, *args, **kwargs)

    return called


class State:
    """What a program commits and goes back to."""

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """They would be called when the number of ranks has changed, which it does not."""

    def on_reset(self) -> None: ...

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None: ...

    def check_host_updates(self) -> None: ...

    def commit(self) -> None:
        self.save()

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None: ...


class ObjectState(State):
    """Of attributes that are given by name."""

    def __init__(self, **kwargs: Any) -> None:
        self._names = list(kwargs)
        self._saved: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(self._held(getattr(self, name))) for name in self._names}

    def restore(self) -> None:
        for name, saved in self._saved.items():
            held = getattr(self, name)
            if _has_state(held):
                held.load_state_dict(copy.deepcopy(saved))
            else:
                setattr(self, name, copy.deepcopy(saved))

    def sync(self) -> None:
        for name in self._names:
            held = getattr(self, name)
            if isinstance(held, torch.nn.Module):
                _broadcast(held.state_dict(), 0)
            elif isinstance(held, torch.optim.Optimizer):
                broadcast_optimizer_state(held, 0)
            elif isinstance(held, ElasticSampler):
                held.processed_indices = set().union(*allgather_object(held.processed_indices))
                held.load_state_dict(held.state_dict())
            elif _has_state(held):
                held.load_state_dict(broadcast_object(held.state_dict(), 0, name))
            else:
                setattr(self, name, broadcast_object(held, 0, name))
        self.save()

    @staticmethod
    def _held(thing: Any) -> Any:
        return thing.state_dict() if _has_state(thing) else thing


class TorchState(ObjectState):
    """A model, an optimizer, and what else is given by name."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer}
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **kwargs)


def _has_state(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


class ElasticSampler(torch.utils.data.Sampler[int]):
    """This rank's share of the indices that were not processed in this epoch; the last ones twice where they do not
    come out even."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed, self.epoch = dataset, shuffle, seed, 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        self.record_indices(set(self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]))

    def record_indices(self, indices: set[int]) -> None:
        self.processed_indices.update(indices)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch, self.processed_indices = state_dict["epoch"], set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        left = [each for each in range(len(self.dataset)) if each not in self.processed_indices]
        if self.shuffle:
            order = torch.randperm(len(left), generator=torch.Generator().manual_seed(self.seed + self.epoch))
            left = [left[each] for each in order.tolist()]
        ranks = size()
        each = -(-len(left) // ranks)
        left += left[: each * ranks - len(left)]
        self.indices = left[rank() : each * ranks : ranks]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)
