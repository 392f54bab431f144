"""Kept samples on the GPU: the program's own `.to(device)` of a batch is answered by gathering it there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from overdrive.core.progress import log
from overdrive.core.silence import silenced
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.datacache.loader import kept_by
from overdrive.datacache.offers import Offers
from overdrive.datacache.source import spread
from overdrive.datacache.table import Table, same_bits
from overdrive.forks.layout import Unfit, tensors_of
from overdrive.seams.torch import drawn_indices
from overdrive.seams.torch.heard_iterators import hear, hear_no_more, is_alone
from overdrive.techniques.data.device_resident.rows import BatchRows, EpochRows

_CHUNK = 64 << 20  # bytes that are sent at a time
_COMPARED = 16  # samples that must have arrived in every bit


class DeviceTable:
    """A complete table's copy on a device."""

    def __init__(self, table: Table, device: Any) -> None:
        """
        Raises:
            Unfit: what arrived is not what was sent.
        """
        self._layout = table.layout
        self.device = device
        self._leaves = [_sent(table, number, device) for number in range(len(table.layout.leaves))]
        rows = np.array(spread(table.count, _COMPARED), dtype=np.intp)
        there = BatchRows(rows, device)
        here = self._layout.build([self.gather(number, there).cpu() for number in range(len(self._leaves))])
        if not same_bits(here, table.gather(rows), table.layout):
            raise Unfit("samples did not arrive on the GPU as they were sent")

    def gather(self, number: int, rows: BatchRows) -> Any:
        """One tensor of the batch of these samples, as a copy of the program's own would lie in memory."""
        import torch

        leaf = self._layout.leaves[number]
        tensor = torch.index_select(self._leaves[number], 0, rows.there())
        return tensor if leaf.plain else tensor.permute(np.argsort(leaf.order).tolist())


def _sent(table: Table, number: int, device: Any) -> Any:
    import torch

    leaf = table.layout.leaves[number]
    dtype = getattr(torch, leaf.dtype)
    sent = torch.empty((table.count, *leaf.sizes_in_memory), dtype=dtype, device=device)
    step = max(1, _CHUNK // leaf.bytes)
    with silenced():  # a table from disk is mapped for reading only, and only read here
        for start in range(0, table.count, step):
            rows = np.ascontiguousarray(table.part(number, start, start + step))
            part = torch.from_numpy(rows.reshape(-1)).view(dtype).reshape(len(rows), *leaf.sizes_in_memory)
            sent[start : start + step].copy_(part)
    return sent


class Residence:
    """All tables that one session holds on the GPU.

    Args:
        memory_share: of the GPU's free memory, that one table may take.
        offers: where batches on the GPU are handed out.
        wanted: whether batches are to be offered now.
        upload, free_memory: for tests, which have no GPU.
    """

    def __init__(
        self,
        memory_share: float,
        offers: Offers,
        upload: Callable[[Table, Any], DeviceTable] = DeviceTable,
        free_memory: Callable[[Any], int] | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.offers = offers
        self.reasons: list[str] = []
        self._memory_share = memory_share
        self._upload = upload
        self._wanted = wanted
        self._free_memory = free_memory or _free_memory
        self._tables: weakref.WeakKeyDictionary[CachedDataset, DeviceTable | None] = weakref.WeakKeyDictionary()
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()

    def attend(self, iterator: Any, device: Any, loader: Any = None) -> None:
        """Offer what this iterator of `loader`, just opened, gathers from a complete table."""
        kept = kept_by(iterator)
        if kept is None or not kept.table.complete or not self.offers.welcome:
            return
        table = self._table(kept, device)
        if table is None or not is_alone(iterator):
            return
        rows = EpochRows(table.device, kept.rows, _coming(loader, iterator))
        hear(iterator, _Offering(self.offers, kept, table, device, self._wanted, rows))
        self._iterators.add(iterator)

    def close(self) -> None:
        for iterator in list(self._iterators):
            hear_no_more(iterator)
        self._iterators.clear()
        self._tables.clear()
        self.offers.clear()

    def _table(self, kept: CachedDataset, device: Any) -> DeviceTable | None:
        if kept not in self._tables:
            try:
                self._tables[kept] = self._sent(kept.table, device)
            except Exception as error:  # the GPU has no memory left, say
                reason = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
                log.info("samples are not held on the GPU: %s", reason)
                self.reasons.append(reason)
                self._tables[kept] = None
        return self._tables[kept]

    def _sent(self, table: Table, device: Any) -> DeviceTable:
        size, free = table.layout.bytes * table.count, self._free_memory(device)
        if size > self._memory_share * free:
            raise Unfit(f"its samples take {size >> 20} MiB, and the GPU has {free >> 20} MiB free")
        return self._upload(table, device)


class _Offering:
    def __init__(
        self,
        offers: Offers,
        kept: CachedDataset,
        table: DeviceTable,
        device: Any,
        wanted: Callable[[], bool],
        rows: EpochRows,
    ) -> None:
        self._rows = rows
        self._offers = offers
        self._kept = kept
        self._table = table
        self._device = device
        self._wanted = wanted

    def __call__(self, indices: Any, batch: Any) -> None:
        kept = self._kept
        if not self._wanted():
            return
        rows = self._rows.of(indices) if kept.dropped is None and self._offers.welcome else None
        tensors = None if rows is None else tensors_of(batch, kept.table.layout.structure)
        if rows is None or tensors is None:
            return
        for number, tensor in enumerate(tensors):
            self._offers.add(tensor, self._device, _gathering(self._table, number, rows))


def _coming(loader: Any, iterator: Any) -> Callable[[], list[Any]] | None:
    """What gives the indices of all batches to come, once the first is drawn, where nobody can tell."""
    if loader is None or isinstance(drawn_indices.indices_of(iterator), drawn_indices.Ahead):
        return None
    if not drawn_indices.can_be_peeked(loader):
        return None
    peeking = drawn_indices.Peeking(drawn_indices.indices_of(iterator), len(iterator))
    drawn_indices.draw_from(iterator, peeking)
    return lambda: peeking.coming(len(iterator))


def _gathering(table: DeviceTable, number: int, rows: BatchRows) -> Callable[[], Any]:
    return lambda: table.gather(number, rows)


def _free_memory(device: Any) -> int:
    import torch

    return int(torch.cuda.mem_get_info(device)[0])
