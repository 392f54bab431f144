"""Times collectives among the ranks of this run: each rank calls the same, and has the same result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from overdrive.machine.pool.shared_memory import SharedSlots

_SMALLEST, _STEP = 1 << 10, 4  # bytes, and how many times larger the next size is
_MOST = {"cpu": 64 << 20, "cuda": 1 << 30}
_MOST_QUICK = 4 << 20
_PAIR = 4 << 20  # bytes between each two
_COPIED = 16 << 20  # bytes: more than lies in caches near a core
_MOST_PAIRS = 64  # hosts by hosts would take long
_ENOUGH = 0.1  # seconds that one size is repeated for
_REPETITIONS = (3, 200)
_ROUNDS = 3  # of which the best counts


class Pool:
    """
    Args:
        device: "cpu" or "cuda", where the data lies.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._rank, self._size = distributed.get_rank(), distributed.get_world_size()

    def measure(self, quick: bool) -> dict[str, dict[int, float]]:
        """Seconds by size in bytes, by operation."""
        most = _MOST_QUICK if quick else _MOST[self._device]
        found: dict[str, dict[int, float]] = {}
        for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "point_to_point"):
            size, found[name] = _SMALLEST, {}
            while size <= most:
                found[name][size] = self._time(self._call(name, size), 2 if name == "point_to_point" else 1)
                size *= _STEP
        return found

    def busy(self) -> float:
        """Seconds of processors that a rank needs for each second of an all-reduce, at most one."""
        call = self._call("all_reduce", _PAIR)
        best = self._time(call, 1)
        began = time.process_time()
        for _ in range(_REPETITIONS[0]):
            call()
        self._wait()
        return min(1.0, (time.process_time() - began) / _REPETITIONS[0] / best)

    def by_memory(self) -> dict[str, float] | None:
        """Seconds of an exchange of a few bytes by shared memory, and bytes a second that all ranks copy at once each;
        None where they have none in common."""
        if self._device != "cpu" or (slots := SharedSlots.among(_Words(self._rank, self._size))) is None:
            return None
        source, place = (torch.zeros(_COPIED // 4) for _ in range(2))
        copied = self._time(lambda: place.copy_(source), 1)
        return {"exchange": self._time(slots.exchange, 1), "bytes_per_second": _COPIED / copied}

    def pairs(self) -> list[dict[str, Any]]:
        """Between each two ranks, while the others are silent; none where there are too many."""
        both = [(one, other) for one in range(self._size) for other in range(one + 1, self._size)]
        if len(both) > _MOST_PAIRS:
            return []
        found = []
        for one, other in both:
            seconds = self._time(self._ping(one, other, _PAIR), 2)
            found.append({"ranks": [one, other], "bytes": _PAIR, "bytes_per_second": _PAIR / seconds})
        return found

    def _call(self, name: str, size: int) -> Callable[[], None]:
        """`size` is of the whole: what each has, or what is put together or divided."""
        if name == "point_to_point":
            return self._ping(0, self._size - 1, size)
        whole = self._data(size // 4 // self._size * self._size)
        part = self._data(len(whole) // self._size)
        if name == "all_reduce":
            return lambda: distributed.all_reduce(whole)
        if name == "all_gather":
            return lambda: distributed.all_gather_into_tensor(whole, part)
        if name == "reduce_scatter":
            return lambda: distributed.reduce_scatter_tensor(part, whole)
        return lambda: distributed.broadcast(whole, 0)

    def _ping(self, one: int, other: int, size: int) -> Callable[[], None]:
        """There and back."""
        data = self._data(size // 4)

        def call() -> None:
            if self._rank == one:
                distributed.send(data, other)
                distributed.recv(data, other)
            elif self._rank == other:
                distributed.recv(data, one)
                distributed.send(data, one)

        return call

    def _data(self, elements: int) -> torch.Tensor:
        return torch.zeros(max(1, elements), device=self._device)

    def _time(self, call: Callable[[], Any], ways: int) -> float:
        """Seconds of one way of a call, on the slowest rank; the best of a few rounds."""
        call()
        first = self._round(call, 1)
        least, most = _REPETITIONS
        repetitions = int(min(most, max(least, _ENOUGH / first)))
        best = min(self._round(call, repetitions) for _ in range(_ROUNDS))
        return best / ways

    def _round(self, call: Callable[[], Any], repetitions: int) -> float:
        distributed.barrier()
        self._wait()
        began = time.perf_counter()
        for _ in range(repetitions):
            call()
        self._wait()
        took = torch.tensor([(time.perf_counter() - began) / repetitions], dtype=torch.float64, device=self._device)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        return float(took)

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


class _Words:
    """What ranks agree by on shared memory."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def told_by_first(self, thing: Any, what: str) -> Any:
        told = [thing]
        distributed.broadcast_object_list(told, 0)
        return told[0]

    def of_all(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        told: list[Any] = [None] * self.size
        distributed.all_gather_object(told, [*numbers])
        return told
