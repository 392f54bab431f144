"""What a Horovod program's ranks send each other: over process groups that nothing else uses."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import torch
from torch.distributed import ReduceOp

from overdrive.machine.pool.shared_memory import SharedSlots
from overdrive.ranks.group import MOST_TO_ADD, Group
from overdrive.ranks.requests import Requests
from overdrive.seams.torch.internals import gather, gloo_group, nccl_group

_PATIENCE = timedelta(hours=24)  # as of the groups of a run: its monitor is quicker, and knows why
_REDUCTIONS = {"sum": ReduceOp.SUM, "min": ReduceOp.MIN, "max": ReduceOp.MAX, "product": ReduceOp.PRODUCT}
_names = count()  # of groups: after `shutdown` the store has the places of those who are gone


class Wire:
    """All calls are made by one thread, in the same order on all ranks. `group`: None for a process that is alone.

    Attributes:
        by_memory: whether ranks are of one machine, and talk by memory that they share; tensors of GPUs do not.
    """

    def __init__(self, group: Group | None) -> None:
        self._group = group
        self.rank, self.size = (group.rank, group.size) if group else (0, 1)
        self._on_cpu: Any = None
        self._name = f"horovod {next(_names)}"
        if group:
            self._on_cpu = gloo_group(group.store, self._name, group.rank, group.size, _PATIENCE)
        self._on_gpu: Any = None
        self._requests: Requests | None = None
        self._slots = SharedSlots.among(self) if group else None
        if self._slots is not None:
            self._requests = Requests(self._slots, self.size)
        self.by_memory = self._slots is not None

    def close(self) -> None:
        """After the last call."""
        slots, self._slots, self._requests = self._slots, None, None
        if slots is not None:
            slots.close()

    @property
    def monitor(self) -> Any:
        return self._group.monitor if self._group else None

    def exchange(self, thing: Any) -> list[Any]:
        """What each rank says, which JSON can hold."""
        data = json.dumps(thing).encode()
        if self._requests is not None and (told := self._by_slots(self._requests, data)) is not None:
            return told
        lengths = torch.tensor([len(data)])
        told = self.gather(lengths, [1] * self.size).tolist()  # `item` would be a number that the program reads
        whole = self.gather(torch.frombuffer(bytearray(data), dtype=torch.uint8), told)
        return [json.loads(bytes(part.tolist())) for part in whole.split(told)]  # type: ignore[no-untyped-call]

    def _by_slots(self, requests: Requests, data: bytes) -> list[Any] | None:
        """None where one of the ranks has more to say than a slot holds."""
        requests.put(data[: requests.room])
        sizes: list[int] = []
        self._reached(lambda: sizes.extend(requests.meet(0, 0, "words", "", len(data), sizes_differ=True)))
        if max(sizes) > requests.room:
            return None
        return [json.loads(requests.taken(rank, size)) for rank, size in enumerate(sizes)]

    def told_by_first(self, thing: Any, what: str) -> Any:
        return self.exchange(thing)[0]

    def of_all(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        return self.exchange(list(numbers))

    def reduce_(self, tensor: torch.Tensor, operation: str) -> None:
        """In its place: a flat one, of one piece."""
        slots, requests = self._slots, self._requests
        if slots is None or requests is None or operation != "sum" or self.size > MOST_TO_ADD or tensor.is_cuda:
            self._done(tensor, lambda on: on.allreduce([tensor], _REDUCTIONS[operation]))
        else:
            self._reached(lambda: tensor.copy_(requests.summed(tensor, range(self.size), slots.exchange)))

    def gather(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """One after the other along the first dimension, where rank r has `sizes[r]`."""
        if self._group is None:
            return tensor.clone()
        most = max(sizes)
        own = tensor.contiguous()
        if len(own) < most:
            own = torch.cat((own, own.new_zeros(most - len(own), *own.shape[1:])))
        whole = own.new_empty(self.size * most, *own.shape[1:])
        if whole.numel():
            self._done(own, lambda on: gather(on, _bytes(whole), _bytes(own)))
        parts = whole.split(most) if most else [whole] * self.size  # type: ignore[no-untyped-call]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def broadcast_(self, tensor: torch.Tensor, root: int) -> None:
        if tensor.numel():
            sent = tensor.contiguous()
            self._done(sent, lambda on: on.broadcast(_bytes(sent), root))
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)

    def deal(self, tensor: torch.Tensor, own: Sequence[int], theirs: Sequence[int]) -> torch.Tensor:
        """`own[r]` rows of the tensor go to rank r; `theirs[r]` come from it."""
        if self._group is None:
            return tensor.clone()
        whole = tensor.new_empty(sum(theirs), *tensor.shape[1:])
        sent = tensor.contiguous()
        self._done(sent, lambda on: on.alltoall_base(whole, sent, list(theirs), list(own)))
        return whole

    def _done(self, tensor: torch.Tensor, begin: Callable[[Any], Any]) -> None:
        """Begin it, and wait until it is over; does not return where another rank is gone."""
        if self._group is None:
            return

        def done() -> None:
            begin(self._on(tensor)).wait()
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()

        self._reached(done)

    def _reached(self, others: Callable[[], object]) -> None:
        """Does not return where another rank is gone."""
        assert self._group is not None
        try:
            others()
        except RuntimeError as error:
            self._group.lost(error)

    def _on(self, tensor: torch.Tensor) -> Any:
        assert self._group is not None
        if not tensor.is_cuda:
            return self._on_cpu
        if self._on_gpu is None:
            self._on_gpu = nccl_group(self._group.store, f"{self._name} gpu", self.rank, self.size, _PATIENCE)
        return self._on_gpu


def host() -> str:
    return f"{socket.gethostname()} {uuid.getnode()}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
