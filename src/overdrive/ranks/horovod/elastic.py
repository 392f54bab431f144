"""Horovod's elastic interface, for a number of ranks that does not change: nothing is lost, and nobody joins."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from overdrive.ranks.horovod.objects import broadcast_object, broadcast_optimizer_state
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
    """This rank's share of the indices that were not processed in this epoch; the first ones twice where they do not
    come out even. In the order that Horovod's has."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed, self.epoch = dataset, shuffle, seed, 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """All ranks have processed one of that size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        self.rank, self.num_replicas = rank(), size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        more = self.total_size - len(self.remaining_indices)
        self.indices = (self.remaining_indices + self.remaining_indices[:more])[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
