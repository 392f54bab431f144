"""The next batches of a loader without workers, made by a forked copy while the program computes.

The program still draws every index itself, at its own time. A batch made ahead is handed out only where that index
and the states of the generators it draws from are what it was made from; its draws are then made up for. Anything
else is fetched here, as without us. So no guess about a sampler, a data set or a program has to be right.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from overdrive.core.progress import log
from overdrive.datacache.fingerprint import Fingerprint
from overdrive.datacache.layout import Unfit
from overdrive.datacache.offers import Copier, Offers
from overdrive.machine.memory import available_memory
from overdrive.techniques.data.prefetch.course import Course
from overdrive.techniques.data.prefetch.gathering import Gathered, Thread, gather_ahead, gathered_by
from overdrive.techniques.data.prefetch.trial import look, roots_of, try_out

# Batches that are fetched here as well, and compared, before a forked copy is trusted.
_COMPARED = 2
_MOST_MISSES = 3.0
_FORGIVEN = 0.1  # of a miss, by each batch that came true: one miss in ten batches is too many
_MOST_RUNNING = 4
_MOST_KNOWN = 3  # data sets that are kept alive for it: of training, validation and test
# Trying a data set takes 0.1 s and more, which a program that makes a new one again and again won't get back.
_MOST_TRIED = 8
_MOST_LOOKS = 5  # one after the other, with no batch that came true between them
_MEMORY_SHARE = 0.1
_MEMORY_UNKNOWN = 4 << 30
_LOOK_SHARE = 0.02  # of the time that fetching takes, for looking whether the data set was changed


class PrefetchManager:
    """All loaders of one session.

    Args:
        depth: batches that a forked copy makes ahead.
        on_refused: told the reason when no loader is left.
        device: gives the GPU that the program trains on, None where it trains on none.
    """

    def __init__(
        self,
        depth: int,
        on_refused: Callable[[str], None] = lambda reason: None,
        device: Callable[[], Any] = lambda: None,
    ) -> None:
        self.reasons: list[str] = []  # why loaders were refused
        self.taken = 0  # batches that were made ahead and came true
        self.tried = 0  # data sets
        self.depth = depth
        self.offers = Offers()
        self._on_refused = on_refused
        self._device = device
        self._copier: Copier | None = None
        self._thread: Thread | None = None  # that gathers batches of kept samples
        self._loaders: weakref.WeakKeyDictionary[Any, Ahead] = weakref.WeakKeyDictionary()
        self._aheads: deque[Ahead] = deque(maxlen=_MOST_KNOWN)
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()

    def attend(self, loader: Any, iterator: Any) -> None:
        """Read ahead for this iterator, which has just been made."""
        ahead = self._loaders.get(loader)
        if ahead is None:
            ahead = self._loaders[loader] = self._known(loader) or self._new(loader)
        if ahead.refused is not None:
            return
        what = gathered_by(iterator)
        if what is not None:
            return self._gather_ahead(loader, iterator, what, ahead)
        reason = _unsuited(iterator)
        if reason is not None:
            ahead.refuse(reason)
            return
        iterator.overdrive_course = Course(ahead)
        iterator.__class__ = _iterator_class()
        self._iterators.add(iterator)

    def _gather_ahead(self, loader: Any, iterator: Any, what: Gathered, ahead: Ahead) -> None:
        self._thread = self._thread if self._thread is not None and self._thread.mine else Thread()
        resident = hasattr(iterator, "overdrive_offer")  # its samples are on the GPU already
        reason = gather_ahead(
            loader,
            iterator,
            what,
            thread=self._thread,
            copier=(lambda: None) if resident else self.copier,
            offers=self.offers,
            taken=self._count,
        )
        if reason:
            ahead.refuse(reason)
        else:
            self._iterators.add(iterator)

    def _count(self) -> None:
        self.taken += 1

    def _new(self, loader: Any) -> Ahead:
        ahead = Ahead(self, loader)
        self._aheads.append(ahead)
        return ahead

    def _known(self, loader: Any) -> Ahead | None:
        """What is known of a former loader of the same samples: a program may make a new one for each epoch."""
        for ahead in self._aheads:
            if ahead.dataset is loader.dataset and ahead.collate is loader.collate_fn:
                return ahead
        return None

    def refused(self, reason: str) -> None:
        log.info("a loader's batches are not made ahead: %s", reason)
        self.reasons.append(reason)
        if all(ahead.refused is not None for ahead in self._loaders.values()) and not self._more_to_come():
            self._on_refused(reason)

    def _more_to_come(self) -> bool:
        from torch.utils.data import DataLoader

        loaders = [thing for thing in gc.get_objects() if issubclass(type(thing), DataLoader)]
        return any(loader not in self._loaders for loader in loaders)

    def room(self) -> bool:
        courses = [each.overdrive_course for each in list(self._iterators) if hasattr(each, "overdrive_course")]
        running = [course for course in courses if course.running]
        return len(running) < _MOST_RUNNING

    def copier(self) -> Copier | None:
        """What copies batches to the GPU ahead of the program, if there is one and it takes them from there."""
        device = self._device()
        if device is None or not self.offers.welcome:
            return None
        if self._copier is None or self._copier.device != device:
            self._copier = Copier(device)
        return self._copier

    def close(self) -> None:
        """End all forked copies; iterators go on as torch's own."""
        for iterator in list(self._iterators):
            if not hasattr(iterator, "overdrive_course"):
                iterator._dataset_fetcher.ahead = None
                continue
            iterator.overdrive_course.end()
            del iterator.overdrive_course
            iterator.__class__ = _iterator_class().__base__
        if self._thread is not None:
            self._thread.end()
        self._iterators.clear()
        self._aheads.clear()
        self._loaders.clear()
        self.offers.clear()


def _unsuited(iterator: Any) -> str | None:
    from torch.utils.data import _utils
    from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

    if getattr(iterator, "_num_workers", 0):
        return "it has workers, which fetch ahead already"
    if not isinstance(iterator, _SingleProcessDataLoaderIter):
        return "it makes an iterator of its own"
    if iterator._dataset_kind != _DatasetKind.Map:
        return "its data set is a stream, which a forked copy would not move on"
    if type(iterator._dataset_fetcher) is not _utils.fetch._MapDatasetFetcher:
        return "another technique gathers its samples"
    if type(iterator) is not _SingleProcessDataLoaderIter:
        return "it makes an iterator of its own"
    return None


@cache
def _iterator_class() -> Any:
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    class Attended(_SingleProcessDataLoaderIter):
        overdrive_course: Course

        def _next_data(self) -> Any:
            batch = self.overdrive_course.next_batch(self)
            if self._pin_memory:
                from torch.utils.data import _utils

                batch = _utils.pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
            return batch

    return Attended


class Ahead:
    """What is known of one loader, and of others of the same samples."""

    def __init__(self, manager: PrefetchManager, loader: Any) -> None:
        self.manager = manager
        self.dataset = loader.dataset
        self.collate = loader.collate_fn
        self.refused: str | None = None
        self.compared = 0  # batches that came out the same here and in a forked copy
        self.goes_on = False  # whether the program takes more than the first batches
        self.seconds = 0.0  # for the latest batch fetched here
        self.largest = 0  # bytes
        self.start_seconds = 0.0  # that the last fork took
        self._misses = 0.0
        self._seen: Fingerprint | None = None
        self._looks = 0
        self._looked_at = 0.0
        self._look_seconds = 0.0

    @property
    def trusted(self) -> bool:
        return self.compared >= _COMPARED

    def refuse(self, reason: str) -> None:
        if self.refused is None:
            self.refused = reason
            self.manager.refused(reason)

    def hit(self) -> None:
        self._misses = max(0.0, self._misses - _FORGIVEN)
        self._looks = 0

    def miss(self, reason: str) -> None:
        self._misses += 1
        log.info("a batch made ahead is thrown away: %s", reason)
        if self._misses >= _MOST_MISSES:
            self.refuse(reason)

    def prepare(self, iterator: Any) -> None:
        """Before a fork: know the data set as it is now.

        Raises:
            Unfit: it cannot be read ahead.
        """
        if self._seen is None:
            self.manager.tried += 1
            if self.manager.tried > _MOST_TRIED:
                raise Unfit("the program makes new data sets again and again")
            self._seen = try_out(iterator)
        elif self._seen.watch.changed():
            self._looks += 1
            if self._looks > _MOST_LOOKS:
                raise Unfit("the data set is written to all the time")
            self._seen = look(roots_of(iterator))

    def disturbed(self) -> bool:
        """Whether the data set has changed since it was prepared: quickly for each batch, wholly now and then."""
        assert self._seen is not None
        watch = self._seen.watch
        if watch.rebound():
            return True
        began = time.perf_counter()
        spared = self._look_seconds / _LOOK_SHARE
        if self.seconds < spared and began - self._looked_at < spared:
            return False
        changed = watch.changed()
        self._looked_at = time.perf_counter()
        self._look_seconds = self._looked_at - began
        return changed

    def slot_bytes(self) -> int:
        """
        Raises:
            Unfit: so many batches take too much memory.
        """
        size = (self.largest * 5 // 4 + 8191) // 4096 * 4096
        if size * self.manager.depth > _MEMORY_SHARE * (available_memory() or _MEMORY_UNKNOWN):
            raise Unfit(f"its batches are too large ({self.largest >> 20} MiB) to be made ahead")
        return int(size)
