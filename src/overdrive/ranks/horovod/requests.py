"""What a program asks of all ranks, under a name, and when they all ask for the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Request:
    """
    Attributes:
        kind: "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier" or "join".
        tensor: what is sent; of allreduce and broadcast also where the result goes. None of barrier and join.
        settings: what JSON can hold, and all ranks must say alike.
        splits: of alltoall, the rows for each rank.
        event: of a GPU, after which the tensors are ready.
    """

    name: str
    kind: str
    tensor: torch.Tensor | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    splits: list[int] = field(default_factory=list)
    event: Any = None
    result: Any = None
    error: Exception | None = None
    matched: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def told(self) -> list[Any]:
        """What other ranks hear of it: name, kind, settings, the tensor's type, device and shape, splits."""
        held = self.tensor
        told = ["", "", []] if held is None else [str(held.dtype), held.device.type, list(held.shape)]
        return [self.name, self.kind, dict(self.settings), told, self.splits]

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        self.result, self.error = result, error
        self.done.set()


@dataclass(frozen=True)
class Ready:
    """A request that all ranks have made, or that have joined. `by_rank`: None for one that has joined."""

    name: str
    by_rank: tuple[list[Any] | None, ...]

    @property
    def _first(self) -> list[Any]:
        return next(each for each in self.by_rank if each is not None)

    @property
    def kind(self) -> str:
        return str(self._first[1])

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._first[2])

    @property
    def tensor(self) -> tuple[str, str, list[int]]:
        """Its type, device and shape."""
        kind, device, shape = self._first[3]
        return kind, device, shape

    def rows(self) -> list[int]:
        """Of each rank's tensor."""
        return [int(each[3][2][0]) if each else 0 for each in self.by_rank]

    def splits_to(self, rank: int) -> list[int]:
        return [int(each[4][rank]) if each else 0 for each in self.by_rank]

    def wrong(self) -> str:
        """What is not the same on all ranks; empty where nothing is."""
        mine = [each for each in self.by_rank if each is not None]
        if len(mine) < len(self.by_rank) and self.kind != "allreduce":
            return f"{self.kind} cannot go on without the ranks that have joined"
        uneven = self.kind in ("allgather", "alltoall")
        looked_at: tuple[tuple[str, Callable[[list[Any]], Any]], ...] = (
            ("another operation", lambda each: each[1]),
            ("other settings", lambda each: each[2]),
            ("tensors of another type", lambda each: each[3][:2]),
            ("tensors of another shape", lambda each: each[3][2][1 if uneven else 0 :]),
        )
        for what, of in looked_at:
            if any(of(each) != of(mine[0]) for each in mine[1:]):
                return f"some ranks ask for {what}"
        return ""


def ready(told: Sequence[Mapping[str, Any]]) -> list[Ready]:
    """What can be done now, in an order that is the same on all ranks.

    Args:
        told: of each rank, `pending` (a list of `Request.told`) and whether it has `joined`.
    """
    by_name = [{each[0]: each for each in rank["pending"]} for rank in told]
    order: dict[str, None] = {}
    for named, rank in zip(by_name, told, strict=True):
        if not rank["joined"]:
            order.update(dict.fromkeys(named))
    return [
        Ready(name, tuple(named.get(name) for named in by_name))
        for name in order
        if all(name in named or rank["joined"] for named, rank in zip(by_name, told, strict=True))
    ]
