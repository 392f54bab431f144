"""Which elements of a tensor are whose: as they lie in memory, as equal as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from overdrive.model_state.division.exchange import shares
from overdrive.ranks.group import Group

T = TypeVar("T")

BUCKET = 4 << 20  # bytes that are gathered at once: what is gathered is held three times meanwhile


class Share:
    """Of a tensor that is dense. `owner`: the rank that has all of it, of which the others have nothing."""

    def __init__(self, whole: torch.Tensor, rank: int, ranks: int, owner: int | None = None) -> None:
        self.shape, self.stride = whole.shape, whole.stride()
        if owner is None:
            self.sizes = shares(whole.numel(), ranks)
        else:
            self.sizes = [whole.numel() if each == owner else 0 for each in range(ranks)]
        self.rank, self.owner = rank, owner

    @property
    def size(self) -> int:
        return self.sizes[self.rank]

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all of it."""
        return self.owner == self.rank

    def of(self, whole: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """A flat view of this rank's elements, or of another's."""
        rank = self.rank if rank is None else rank
        return flat(whole).narrow(0, sum(self.sizes[:rank]), self.sizes[rank])

    def laid(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers, in memory in this order."""
        if tensor.stride() == self.stride:
            return tensor
        return self.blank(tensor).copy_(tensor)

    def seen_whole(self, part: torch.Tensor) -> torch.Tensor:
        """In its own shape, in the same memory: of a part that is all of it."""
        return part.as_strided(self.shape, self.stride)

    def blank(self, like: torch.Tensor) -> torch.Tensor:
        """A whole one of that type, there."""
        return torch.empty_strided(self.shape, self.stride, dtype=like.dtype, device=like.device)

    def whole(self, part: torch.Tensor, group: Group, what: str) -> torch.Tensor:
        """What all ranks' parts make up."""
        made = self.blank(part)
        self.of(made).copy_(part)
        exchange([(made, self)], group, what)
        return made


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in the order of its memory, as a view."""
    return tensor.as_strided((tensor.numel(),), (1,))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether it lies in one piece of memory, each element once, in whatever order of its dimensions."""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def exchange(held: Sequence[tuple[torch.Tensor, Share]], group: Group, what: str) -> None:
    """Each of these is whole, and right in this rank's share: put those of the other ranks in."""
    for bucket in in_buckets(held, lambda each: each[0], _kind):
        whole, share = bucket[0]
        if share.owner is not None:
            group.broadcast(flat(whole), share.owner, what)
            continue
        if len(bucket) == 1 and len({*share.sizes}) == 1:  # without a copy
            group.gather_into(flat(whole), share.of(whole), what)
            continue
        own = torch.cat([share.of(whole) for whole, share in bucket])
        sizes = [sum(share.sizes[rank] for _, share in bucket) for rank in range(group.size)]
        told = group.gather(own, 0, sizes, what).split(sizes)  # type: ignore[no-untyped-call]
        for rank, theirs in enumerate(told):
            if rank == group.rank:
                continue
            parts = theirs.split([share.sizes[rank] for _, share in bucket])
            for (whole, share), part in zip(bucket, parts, strict=True):
                share.of(whole, rank).copy_(part)


def whole_somewhere(
    held: Sequence[tuple[torch.Tensor | None, torch.Tensor | None, Share]], group: Group
) -> list[tuple[torch.Tensor, Share]]:
    """Those that are whole on some rank, to be exchanged: who holds a parameter's memory may be another on each.

    Args:
        held: of each the whole, or where it is not here this rank's part.
    """
    told = group.of_all([int(whole is not None) for whole, _, _ in held], "which parameters are whole")
    found = []
    for (whole, part, share), anywhere in zip(held, map(any, zip(*told, strict=True)), strict=True):
        if anywhere and whole is None and part is not None:
            whole = share.blank(part)
            share.of(whole).copy_(part)
        if anywhere and whole is not None:
            found.append((whole, share))
    return found


def _kind(held: tuple[torch.Tensor, Share]) -> Any:
    """One that a rank has all of goes by itself."""
    whole, share = held
    return (whole.dtype, whole.device) if share.owner is None else share


def in_buckets(things: Iterable[T], tensor: Callable[[T], torch.Tensor], kind: Callable[[T], Any]) -> Iterator[list[T]]:
    """Those together that follow each other, are of one kind and no more than a bucket holds."""
    bucket: list[T] = []
    size = 0
    for each in things:
        if bucket and (size + tensor(each).nbytes > BUCKET or kind(each) != kind(bucket[0])):
            yield bucket
            bucket, size = [], 0
        bucket.append(each)
        size += tensor(each).nbytes
    if bucket:
        yield bucket
