"""The samples of a table, made again by their source."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from overdrive.datacache.draws import Generators, contents_of
from overdrive.datacache.randomness import left_alone
from overdrive.datacache.source import Source
from overdrive.datacache.table import Bytes, Rows, Table, bytes_of, same_bits
from overdrive.forks.layout import Unfit, tensors_of

ANOTHER = "is not what was kept"
_LOOKED_THROUGH = 20_000  # objects, for generators of the data set's own: 10 ms
_SERVED = 8  # samples of a batch that are made again before any others


class RemadeSamples:
    """See `auditor.Remade`.

    Args:
        served: rows of a batch as the program has it, if they were looked up.
        as_here: whether samples are known to come out in forked processes as they do here.
    """

    def __init__(
        self, source: Source, table: Table, served: Mapping[int, Sequence[Bytes]] | None = None, as_here: bool = False
    ) -> None:
        self._source = source
        self._table = table
        self._served = served or {}
        self._as_here = as_here
        self._generators = Generators()

    def prepare(self) -> None:
        self._source.enter_worker(0)
        self._generators = contents_of(self._source.dataset, _LOOKED_THROUGH).generators

    def others(self) -> Iterator[int]:
        return present_rows(self._table)

    def difference(self, row: int) -> str:
        before = self._generators.now()
        fresh = self._source.fetch([row])
        if not before.same(self._generators.now()):
            return "draws random numbers"
        return "" if self._is_kept(row, fresh) else ANOTHER

    def differs_here(self, row: int) -> bool:
        if self._as_here:
            return True
        try:
            with left_alone():
                return not self._is_kept(row, self._source.fetch([row]))
        except Exception:
            return True

    def named(self, row: int) -> str:
        return f"sample {self._source.indices([row])[0]} of {type(self._source.dataset).__name__}"

    def _is_kept(self, row: int, fresh: Any) -> bool:
        if not same_bits(fresh, self._table.gather(np.array([row], dtype=np.intp)), self._table.layout):
            return False
        if row not in self._served:
            return True
        parts = parts_of(fresh, self._table, [0])
        return parts is not None and all(map(np.array_equal, parts[0], self._served[row]))


def present_rows(table: Table) -> Iterator[int]:
    """All that are there, in random order: of a million in 15 ms."""
    yield from map(int, np.random.default_rng().permutation(np.flatnonzero(table.present)))


def some_of(batch: Any, rows: Rows, table: Table) -> dict[int, Sequence[Bytes]]:
    """Some samples of a batch, by their rows, as bytes of their own: the program may write to the batch."""
    places = random.Random().sample(range(len(rows)), min(_SERVED, len(rows)))
    parts = parts_of(batch, table, places)
    if parts is None:
        raise Unfit("a batch is built in another way than its samples")
    return dict(zip(rows[places].tolist(), parts, strict=True))


def parts_of(batch: Any, table: Table, places: list[int]) -> list[list[Bytes]] | None:
    """The bytes of the samples at these places of a batch, leaf by leaf; None where it is built in another way."""
    tensors = tensors_of(batch, table.layout.structure)
    if tensors is None:
        return None
    leaves = [
        bytes_of(tensor[places] if leaf.plain else tensor[places].permute(leaf.order))
        for leaf, tensor in zip(table.layout.leaves, tensors, strict=True)
    ]
    return [[leaf[number] for leaf in leaves] for number in range(len(places))]
