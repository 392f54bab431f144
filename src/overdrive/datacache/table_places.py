"""Where tables of samples come from and where they lie: in memory, or on disk, where this process or another one left
them or fills them now.
"""

from __future__ import annotations

import time

from overdrive.changes.called import Called
from overdrive.core.ranks_here import ranks_here
from overdrive.datacache.codes import Coded, bytes_as_codes
from overdrive.datacache.dry_run import DryRunResult, still_true
from overdrive.datacache.early import this_program
from overdrive.datacache.partial_table import PartialTable
from overdrive.datacache.source import Source
from overdrive.datacache.store import Store
from overdrive.datacache.table import Table
from overdrive.forks.layout import Unfit
from overdrive.machine.memory import available_memory

# Between two moments another process may finish or give up the table that we meant to join: looked again so often.
_ROUNDS = 3
_ROUND = 0.05  # seconds
_NOT_PACKED = (
    "{} holds no samples that are this data set's: its files or code, whether its loader has workers, the version of a "
    "library or the kind of processor are not what they were when `overdrive pack` wrote them, or a file is damaged"
)


class TablePlaces:
    """
    Args:
        store: on disk; None where there is none.
        memory_share: of the available memory, that one table may take.
        at_once: see `CacheManager`.
    """

    def __init__(self, store: Store | None, memory_share: float, at_once: bool) -> None:
        self._store = store
        self._memory_share = memory_share
        self._at_once = at_once

    def stored(self, source: Source, key: str | None, hidden: str | None) -> tuple[Table, Called] | None:
        """The finished table under this key, if some of its samples are what the source gives now, and what these
        come to in libraries.

        Raises:
            Unfit: there is none, and no other samples are to be kept than those that were packed.
        """
        if self._store is None:
            return None
        table = self._store.open(key) if key else None
        if key and table is not None:
            called = still_true(source, table) if table.count == source.count else None
            if called is not None:
                self._store.remember_user(key, this_program())
                return table, called
            self._store.remove(key)
        if self._store.packed:
            raise Unfit(hidden or _NOT_PACKED.format(self._store.folder))
        return None

    def place(
        self, source: Source, proof: DryRunResult, key: str | None, hidden: str | None
    ) -> tuple[Table, PartialTable | None]:
        """A place for the samples: on disk if they may outlive this process and there is room, else in memory.

        What another process of this machine is writing to disk (a rank of the same training) is filled together.

        Raises:
            Unfit: the samples are too large, wherever they lie.
        """
        count = source.count
        size = source.bytes_of_all(proof.layout)
        # What lies in memory is there once for each rank, and all of them look before any has filled its own.
        fits = size <= (budget := self._memory_share * available_memory() / ranks_here())
        disk = self._store.room() if self._store and key else 0
        coded: Coded = ()
        # Codes take longer to read than numbers that lie in memory, and less than those that come from the disk.
        if not fits and proof.coded and (size > disk or size > available_memory()):
            coded, size = proof.coded, bytes_as_codes(proof.layout, count, proof.coded)
            fits = size <= budget
        if not fits and size > disk:
            why = "" if key else f" ({hidden or 'samples cannot be written down here'})"
            budgets = f"{budget / 1e9:.1f} GB of memory and {disk / 1e9:.1f} GB of disk{why}"
            raise Unfit(f"its samples need {size / 1e9:.1f} GB, the budget is {budgets}")
        for _ in range(_ROUNDS if self._store and key else 0):
            assert self._store is not None and key is not None
            if (left := self._store.take_over(key, source.filled)) is not None:
                if self._is_of(source, proof, left.table):
                    self._store.forget_unused()
                    return left.table, left
                left.abandon()
            partial = self._store.partial(key, proof.layout, count, size, source.filled, coded)
            if partial is not None:
                self._store.forget_unused()  # a table is begun: last time's are of another data set, or other code
                return partial.table, partial
            if not self._at_once or not fits:
                partial = self._store.join(key, source.filled)
                table = partial.table if partial is not None else self._store.open(key)
                if table is not None and self._is_of(source, proof, table):
                    return table, partial
                if partial is not None:
                    partial.finish([], 0.0)  # no row is ours
            if not self._store.busy(key):
                break
            time.sleep(_ROUND)
        if not fits:
            raise Unfit(f"its samples need {size / 1e9:.1f} GB of disk, which could not be had")
        return source.empty_table(proof.layout, coded), None

    def _is_of(self, source: Source, proof: DryRunResult, table: Table) -> bool:
        """Whether its rows are what the source gives now, as far as some of them show it."""
        fitting = table.layout == proof.layout and table.count == source.count
        return fitting and still_true(source, table) is not None
