"""Decides which loaders' batches are gathered early: those that come from kept samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from overdrive.core.progress import log
from overdrive.datacache.loader import gather_early, kept_by
from overdrive.datacache.manager import other_loaders
from overdrive.datacache.offers import Copier, Offers
from overdrive.seams.torch.heard_iterators import is_heard
from overdrive.techniques.data.prefetch.gathering import Thread, gather_ahead


class Prefetcher:
    """All loaders of one session.

    Args:
        depth: batches that are gathered early.
        offers: where their copies on the GPU are handed out.
        on_refused: told the reason when no loader is left.
        device: gives the GPU that the program trains on, None where it trains on none.
        wanted: whether batches are to be gathered early now.
    """

    def __init__(
        self,
        depth: int,
        offers: Offers,
        on_refused: Callable[[str], None] = lambda reason: None,
        device: Callable[[], Any] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.taken = 0  # batches that were gathered early and came true
        self.offers = offers
        self._depth = depth
        self._on_refused = on_refused
        self._device = device
        self._wanted = wanted
        self._copier: Copier | None = None
        self._thread: Thread | None = None
        # Why a loader was refused; "" where it was not.
        self._verdicts: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()

    def attend(self, loader: Any, iterator: Any) -> None:
        """Gather ahead for this iterator, which has just been made."""
        if self._verdicts.get(loader):
            return
        self._verdicts[loader] = reason = self._gather_ahead(loader, iterator)
        if not reason:
            self._iterators.add(iterator)
            return
        log.info("a loader's batches are not gathered early: %s", reason)
        if all(self._verdicts.values()) and not other_loaders(self._verdicts):
            self._on_refused(reason)

    def _gather_ahead(self, loader: Any, iterator: Any) -> str:
        """Why not, or nothing."""
        kept = kept_by(iterator)
        if kept is None:
            return "its batches do not come from samples that sample_cache keeps"
        self._thread = self._thread if self._thread is not None and self._thread.mine else Thread()
        resident = is_heard(iterator)  # by device_resident: its samples are on the GPU already
        return gather_ahead(
            loader,
            iterator,
            kept,
            depth=self._depth,
            thread=self._thread,
            copier=(lambda: None) if resident else self.copier,
            offers=self.offers,
            taken=self._count,
            wanted=self._wanted,
        )

    def _count(self) -> None:
        self.taken += 1

    def copier(self) -> Copier | None:
        """What copies batches to the GPU ahead of the program, if there is one and it takes them from there."""
        device = self._device()
        if device is None or not self.offers.welcome:
            return None
        if self._copier is None or self._copier.device != device:
            self._copier = Copier(device)
        return self._copier

    def close(self) -> None:
        """Iterators go on without."""
        for iterator in list(self._iterators):
            gather_early(iterator, None)
        if self._thread is not None:
            self._thread.end()
        self._iterators.clear()
        self._verdicts.clear()
        self.offers.clear()
