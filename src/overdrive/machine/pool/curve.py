"""A collective's times over sizes: bandwidths as nccl-tests define them, and latency and bandwidth by a fit."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from overdrive.core.link import Link, LinkError

# Of so many ranks, what each link carries for each byte of the algorithm: nccl-tests, doc/PERFORMANCE.md.
BUS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "point_to_point": lambda ranks: 1.0,
}
# How many messages of a ring, one after the other, it is made of; a broadcast goes from each to the next.
_HOPS: Mapping[str, Callable[[int], int]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1),
    "all_gather": lambda ranks: ranks - 1,
    "reduce_scatter": lambda ranks: ranks - 1,
    "broadcast": lambda ranks: ranks - 1,
    "point_to_point": lambda ranks: 1,
}
_BY_MEMORY = ("exchange", "bytes_per_second")


class Network(Protocol):
    """
    Attributes:
        busy: of each second of an exchange, what it takes from the rank's own computing.
    """

    @property
    def busy(self) -> float: ...

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        """Of an exchange of so many bytes, which are of the whole where that is put together or divided."""


@dataclass(frozen=True)
class OverLink:
    """What rings of ranks make of a link of which only its rate and its latency are known."""

    link: Link
    busy: float = 0.0

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        carried = BUS[operation](ranks) * size / self.link.bytes_per_second
        return _HOPS[operation](ranks) * self.link.latency_seconds + carried


@dataclass(frozen=True)
class Measured:
    """What was measured among `ranks`, in seconds by size, by operation: between two sizes on a straight line, beyond
    the largest at the rate of all. Less takes no longer than more: where it did, it was disturbed.

    Attributes: `memory`: what was measured of memory that they share (see `PoolDiagnosis`); empty where they do not.
    """

    ranks: int
    times: Mapping[str, Mapping[int, float]]
    busy: float
    name: str = ""
    memory: Mapping[str, float] = field(default_factory=dict)

    def by_memory(self) -> Network:
        """Between ranks that gather and sum by memory, if that was measured."""
        if not self.memory:
            return self
        return ByMemory(self, float(self.memory["exchange"]), float(self.memory["bytes_per_second"]))

    @classmethod
    def kept(cls, text: str, name: str) -> Measured:
        """What `overdrive doctor --pool --json` has written.

        Raises:
            LinkError: it is something else.
        """
        times: dict[str, dict[int, float]] = {}
        try:
            told = json.loads(text)
            for each in told["measured"]:
                times.setdefault(each["operation"], {})[int(each["bytes"])] = float(each["seconds"])
            memory = {key: float(told["memory"][key]) for key in _BY_MEMORY} if told.get("memory") else {}
            found = cls(len(told["ranks"]), times, float(told["busy"]), name, memory)
        except (ValueError, TypeError, KeyError):
            raise LinkError(f"{name} is no pool: `overdrive doctor --pool --json {name}` writes one") from None
        if found.ranks < 2 or not BUS.keys() <= times.keys():
            raise LinkError(f"{name} is of no pool of two ranks or more")
        return found

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        """Of fewer ranks than were measured: of as many bytes on each link."""
        times = self.times[operation]
        sizes = sorted(times)
        alike = size * BUS[operation](ranks) / BUS[operation](self.ranks)
        place = bisect_left(sizes, alike)
        if place == len(sizes):
            rate = fit(times).bytes_per_second
            return times[sizes[-1]] + ((alike - sizes[-1]) / rate if rate else 0.0)
        least, most = (min(times[each] for each in sizes[start:]) for start in (max(0, place - 1), place))
        before, after = sizes[max(0, place - 1)], sizes[place]
        return least + (most - least) * (alike - before) / (after - before) if place else most


@dataclass(frozen=True)
class ByMemory:
    """Ranks of one machine, which gather and sum by memory that they share (`pool.shared_memory`).

    Attributes:
        others: of what goes by messages.
        exchange: seconds in which all say something to all.
        bytes_per_second: that each rank copies while all do.
    """

    others: Measured
    exchange: float
    bytes_per_second: float
    busy: float = 1.0  # it is the rank itself that copies and adds

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        if operation == "all_gather":
            return self.exchange + (size / ranks + size) / self.bytes_per_second
        if operation == "all_reduce":  # what is written and put back is noted as computing; with more, in two steps
            passes = 1 if ranks == 2 else 2
            return (1 + passes) * self.exchange + passes * size / self.bytes_per_second
        return self.others.seconds(operation, size, ranks)


@dataclass(frozen=True)
class CurvePoint:
    """One size of one operation: of all ranks' data together, where it puts that together."""

    operation: str
    bytes: int
    seconds: float
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float


@dataclass(frozen=True)
class CurveFit:
    """`latency_seconds` + size ÷ `bytes_per_second`; None where a time does not grow with the size.

    `worst_error` is the largest relative one.
    """

    latency_seconds: float
    bytes_per_second: float | None
    worst_error: float


def points_of(operation: str, ranks: int, seconds: Mapping[int, float]) -> list[CurvePoint]:
    """Of seconds by size in bytes."""
    factor = BUS[operation](ranks)
    return [
        CurvePoint(operation, size, took, size / took, size / took * factor) for size, took in sorted(seconds.items())
    ]


def fit(seconds: Mapping[int, float]) -> CurveFit:
    """Of seconds by size in bytes, with the least squares of relative errors."""
    points = [(float(size), took) for size, took in seconds.items()]
    latency, slope = _line(points)
    if latency < 0:
        latency, slope = 0.0, _through_origin(points)
    if slope < 0:
        latency, slope = _constant(points), 0.0
    worst = max(abs(latency + slope * size - took) / took for size, took in points)
    return CurveFit(latency, 1 / slope if slope > 0 else None, worst)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    weights = [1 / took**2 for _, took in points]
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    y = sum(w * took for w, (_, took) in zip(weights, points, strict=True)) / total
    square = sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    product = sum(w * (size - x) * (took - y) for w, (size, took) in zip(weights, points, strict=True))
    slope = product / square if square else 0.0
    return y - slope * x, slope


def _through_origin(points: Sequence[tuple[float, float]]) -> float:
    return sum(size / took for size, took in points) / sum((size / took) ** 2 for size, took in points)


def _constant(points: Sequence[tuple[float, float]]) -> float:
    return sum(1 / took for _, took in points) / sum(1 / took**2 for _, took in points)
