"""The rows of batches on the GPU: an epoch's at once where they can be known, else each batch's; never waited for.

A copy from pageable memory holds up the program until the GPU has come to it, and with that all that was to run
beside it. So they are copied from pinned memory, which PyTorch's caching allocator keeps until the copy is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overdrive.datacache.table import Rows

_MOST = 1 << 23  # rows of an epoch that are sent at once: 64 MiB


@dataclass(frozen=True)
class Sent:
    """Rows on the device, or on their way there on a stream."""

    rows: Any
    stream: Any = None  # None where there are no streams
    arrived: Any = None  # an event on it

    def on_the_current_stream(self) -> Any:
        """To be read on the stream that is worked on now: a program's prefetcher copies its batches on its own."""
        import torch

        if self.stream is not None and (current := torch.cuda.current_stream(self.rows.device)) != self.stream:
            current.wait_event(self.arrived)
            self.rows.record_stream(current)
        return self.rows


class BatchRows:
    """Those of one batch. They are sent when they are first asked for, once for all its tensors."""

    def __init__(self, rows: Rows, device: Any, there: Sent | None = None) -> None:
        self._rows, self._device, self._there = rows, device, there

    def there(self) -> Any:
        if self._there is None:
            self._there = sent(self._rows, self._device)
        return self._there.on_the_current_stream()


class EpochRows:
    """
    Args:
        coming: the indices of all batches that are still to come; None where they cannot be known before.
        rows_of: the rows that a batch's indices mean, None where they mean none.
    """

    def __init__(
        self, device: Any, rows_of: Callable[[Any], Rows | None], coming: Callable[[], list[Any]] | None = None
    ) -> None:
        self._device, self._rows_of, self._coming = device, rows_of, coming
        self._expected: deque[tuple[Any, Sent]] = deque()  # indices, and their rows on the device

    def of(self, indices: Any) -> BatchRows | None:
        """For each batch of the epoch in its turn."""
        if self._expected and self._expected[0][0] == indices:
            indices, there = self._expected.popleft()
            return BatchRows(np.empty(0, dtype=np.intp), self._device, there)
        rows = self._rows_of(indices)
        if self._coming is not None:
            coming, self._coming = self._coming, None  # the first index has been drawn now
            self._send(coming())
        return None if rows is None else BatchRows(rows, self._device)

    def _send(self, batches: list[Any]) -> None:
        rows = [self._rows_of(each) for each in batches]
        lengths = [0 if each is None else len(each) for each in rows]
        if not rows or any(each is None for each in rows) or sum(lengths) > _MOST:
            return
        there = sent(np.concatenate([each for each in rows if each is not None]), self._device)
        parts = [replace(there, rows=each) for each in there.rows.split(lengths)]
        self._expected.extend(zip(batches, parts, strict=True))


def sent(rows: Rows, device: Any) -> Sent:
    """On the stream that the program works on."""
    import torch

    here = torch.from_numpy(rows)
    if device.type != "cuda":
        return Sent(here.to(device))
    stream = torch.cuda.current_stream(device)
    there = here.pin_memory().to(device, non_blocking=True)
    return Sent(there, stream, stream.record_event())
