"""How a kind of call is divided: where the samples are in its arguments, and in its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from overdrive.model_state.division.by_hand import Known
from overdrive.model_state.division.chance import Drawn
from overdrive.model_state.division.sizes import Numbers
from overdrive.model_state.division.values import NOTHING, Asked
from overdrive.seams.torch.layouts import is_sparse


@dataclass(frozen=True)
class Way:
    """
    Attributes:
        split: of each leaf of the arguments, the dimension of its samples, or None.
        joined: of each leaf of the result, the dimension along which parts make up the whole, and how many there are
            for each sample; None where all ranks have the same.
        norms: whether batches are normalised in it.
        effects: whether it changes attributes of the model, to the same on all ranks.
        asks: what its code asks of its batch.
        by_hand: what its code sums; losses are whole then. None: nothing is summed over samples, and losses are shares.
        numbers: what its code computes with, where some of it hangs on how many samples there are.
        tried: the fewest samples that were tried, and the most. What is made of them may hang on how many there are in
            a way that shows only with fewer, or with more: `x / min(len(x), 16)`.
    """

    split: tuple[int | None, ...]
    joined: tuple[tuple[int, int] | None, ...]
    drawn: tuple[Drawn, ...]
    norms: bool
    effects: bool
    asks: Asked = NOTHING
    by_hand: tuple[Known, ...] | None = None
    numbers: Numbers | None = None
    tried: tuple[int, int] = (0, 0)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_plain(cls, told: dict[str, Any]) -> Way:
        return cls(
            tuple(told["split"]),
            tuple(None if each is None else (each[0], each[1]) for each in told["joined"]),
            tuple(
                Drawn(each["name"], tuple(each["shape"]), each["dim"], each["per_row"], tuple(each["order"]))
                for each in told["drawn"]
            ),
            told["norms"],
            told["effects"],
            Asked.of_plain(told["asks"]),
            None if told["by_hand"] is None else tuple(map(Known.of_plain, told["by_hand"])),
            None if told["numbers"] is None else Numbers.of_plain(told["numbers"]),
            (told["tried"][0], told["tried"][1]),
        )

    def divides(self) -> Any:
        """What it does to a call before its code does anything: equal for ways of which any may come of it."""
        drawn = tuple(
            each if each.dim is None else replace(each, shape=(len(each.shape),)) for each in self.drawn
        )  # of what is divided no size is looked at
        return self.split, drawn, self.norms, self.by_hand, self.numbers and self.numbers.each

    def alike(self, other: Way) -> bool:
        """Whether calls are divided in the same way, of whatever sizes."""
        same = (self.divides(), self.joined, self.effects) == (other.divides(), other.joined, other.effects)
        return same and (self.asks.reductions, self.asks.answers) == (other.asks.reductions, other.asks.answers)

    def beyond(self, leaves: Sequence[Any]) -> bool:
        """Whether it is not known for as many samples as these have."""
        least, most = self.tried
        return not least <= self.rows(leaves) <= most

    def and_of(self, other: Way) -> Way:
        """The same, tried for what the other was tried for as well."""
        tried = (*self.tried, *other.tried)
        return replace(self, tried=(min(tried), max(tried)))

    def rows(self, leaves: Sequence[Any]) -> int:
        """Samples of the batch; 0 where these leaves are not of the kind that was tried."""
        if len(leaves) != len(self.split):
            return 0
        sizes = set()
        for leaf, dim in zip(leaves, self.split, strict=True):
            if dim is not None:
                sizes.add(leaf.shape[dim] if isinstance(leaf, torch.Tensor) and leaf.dim() > dim else 0)
        return sizes.pop() if len(sizes) == 1 else 0


def guesses(leaves: Sequence[Any]) -> Iterator[tuple[tuple[int | None, ...], int]]:
    """Where the samples may be in each leaf, the likeliest first, with how many there are."""
    seen = set()
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.dim() and not is_sparse(each)]
    for base in tensors[:3]:
        for dim in range(min(2, base.dim())):
            rows = base.shape[dim]
            if rows < 2:
                continue
            strict = tuple(_dim(each, dim, rows, (dim,)) for each in leaves)
            loose = tuple(_dim(each, dim, rows, range(8)) for each in leaves)
            alone = tuple(dim if each is base else None for each in leaves)
            for split in (loose, strict, alone):
                if split not in seen:
                    seen.add(split)
                    yield split, rows


def _dim(leaf: Any, first: int, rows: int, others: Sequence[int]) -> int | None:
    if isinstance(leaf, torch.Tensor) and not is_sparse(leaf):  # a graph's matrix: its rows are not samples
        for dim in (first, *others):
            if leaf.dim() > dim and leaf.shape[dim] == rows:
                return dim
    return None
