"""How one dimension of a tensor is divided over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Cut:
    """
    Attributes:
        dim: which dimension of the whole, counted from the front.
        segments: what it is made of, one after the other, in elements. Each is divided over the ranks by itself:
            queries, keys and values that lie in one matrix are three segments.
    """

    dim: int
    segments: tuple[int, ...]

    @property
    def size(self) -> int:
        """Of the dimension, in the whole."""
        return sum(self.segments)

    def at(self, dim: int) -> Cut:
        """The same segments in another place."""
        return Cut(dim, self.segments)

    def even(self, ranks: int) -> bool:
        """Whether each rank has as much as the others."""
        return all(each % ranks == 0 for each in self.segments)

    def lengths(self, rank: int, ranks: int) -> list[int]:
        """What this rank has of each segment: the first ones have more, as `tensor_split` divides."""
        return [each // ranks + (rank < each % ranks) for each in self.segments]

    def held(self, rank: int, ranks: int) -> int:
        """What this rank has of the dimension."""
        return sum(self.lengths(rank, ranks))

    def shape(self, whole: Sequence[int], rank: int, ranks: int) -> list[int]:
        """Of this rank's part."""
        return [self.held(rank, ranks) if dim == self.dim else size for dim, size in enumerate(whole)]

    def part(self, whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
        """This rank's of `whole`, within the graph of its gradients; a view where there is one segment."""
        segments = whole.split(list(self.segments), self.dim)  # type: ignore[no-untyped-call]
        pieces = [each.tensor_split(ranks, self.dim)[rank] for each in segments]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.dim)

    def joined(self, together: torch.Tensor, ranks: int) -> torch.Tensor:
        """The whole, of all ranks' parts one after the other."""
        if len(self.segments) == 1:
            return together
        lengths = [each for rank in range(ranks) for each in self.lengths(rank, ranks)]
        pieces = together.split(lengths, self.dim)  # type: ignore[no-untyped-call]
        count = len(self.segments)
        return torch.cat([pieces[rank * count + place] for place in range(count) for rank in range(ranks)], self.dim)
