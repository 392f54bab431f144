"""Seam *batch fetched*: a `DataLoader` is iterated over, and each batch that comes out of it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overdrive.seams.hub import Seams
from overdrive.seams.torch.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.loader_opens.subscribers:
        open_loader = DataLoader.__iter__

        @functools.wraps(open_loader)
        def __iter__(self: Any) -> Any:
            return hub.loader_opens.run(self, lambda: open_loader(self))

        patches.replace(DataLoader, "__iter__", __iter__)
    if hub.batch_fetched.subscribers:
        fetch = _BaseDataLoaderIter.__next__

        @functools.wraps(fetch)
        def __next__(self: Any) -> Any:
            began = time.perf_counter()
            batch = fetch(self)
            hub.batch_fetched.publish(self, batch, time.perf_counter() - began)
            return batch

        patches.replace(_BaseDataLoaderIter, "__next__", __next__)
    return []
