"""Samples made again whole, beside the same ones made from what is kept of their first halves."""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.datacache.draws import Generators
from overdrive.datacache.remade import ANOTHER, present_rows
from overdrive.datacache.sameness import same
from overdrive.datacache.table import Table
from overdrive.techniques.data.prefix_cache.finding import Paused, entered
from overdrive.techniques.data.prefix_cache.prefix import Prefix, PrefixSource
from overdrive.techniques.data.prefix_cache.sequence import Strayed


class RemadeWhole:
    """See `overdrive.datacache.auditor.Remade`.

    Args:
        as_here: whether first halves are known to come out in forked processes as they do here.
    """

    def __init__(
        self, prefix: Prefix, source: PrefixSource, table: Table, generators: Generators, as_here: bool
    ) -> None:
        self._prefix = prefix
        self._source = source
        self._table = table
        self._generators = generators
        self._as_here = as_here

    def prepare(self) -> None:
        self._generators = entered(self._source.whole, self._generators)

    def others(self) -> Iterator[int]:
        return present_rows(self._table)

    def difference(self, row: int) -> str:
        """Both are made from the same state of all random generators, and must leave the same."""
        prefix, method = self._prefix, self._prefix.method
        index = method.kind(row)
        start = self._generators.now()
        real = method.function(method.owner, index)
        end = self._generators.now()
        start.restore()
        try:
            made = prefix.finish(method.owner, index, prefix.unpack(self._table.row(row)))
        except Strayed:  # the program is given the real one
            return ""
        return "" if same(real, made) and end.same(self._generators.now()) else ANOTHER

    def differs_here(self, row: int) -> bool:
        if self._as_here:
            return True
        before, paused = self._generators.now(), Paused.now
        Paused.now = True
        try:
            return bool(self.difference(row))
        except Exception:
            return True
        finally:
            Paused.now = paused
            before.restore()

    def named(self, row: int) -> str:
        return f"sample {row} of {type(self._prefix.method.owner).__name__}"
