"""Gives loaders workers, has them begin with a copy of the data set that holds, and takes them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from overdrive.machine import shared_memory
from overdrive.techniques.technique import Settings

if TYPE_CHECKING:
    from overdrive.datacache.dry_run import Fetched
    from overdrive.datacache.unchanged import Unchanged

# Starting workers takes tens of milliseconds; an epoch of fewer batches does not earn that back.
_FEWEST_BATCHES = 8
# A batch is measured before workers start only where the shared memory has less room than this for each
# of those in flight: larger batches are hardly seen, and measuring takes a fork.
_ROOMY_BATCH = 1 << 30
_PLACE = shared_memory.PLACE
_CONTEXT = "_DataLoader__multiprocessing_context"  # how a DataLoader keeps it
_CHANGED = ("num_workers", "prefetch_factor", "persistent_workers", "worker_init_fn", _CONTEXT)


class Manager:
    """The loaders that were given workers in one session, and what they were before."""

    def __init__(self, settings: Settings) -> None:
        self.before: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self.refused: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._promised: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # bytes of shared memory
        self._proven: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._settings = settings
        # What each loader's workers hold a copy of, where it has them from us alone, or for longer than the program.
        self._copied: WeakKeyDictionary[Any, Unchanged] = WeakKeyDictionary()
        self._fetched: WeakKeyDictionary[Any, Fetched] = WeakKeyDictionary()
        self._fallen: WeakSet[Any] = WeakSet()  # whose workers have met what the program's own have to do
        self._tried: WeakKeyDictionary[Any, tuple[object, ...]] = WeakKeyDictionary()  # under these settings

    def take(self, loader: Any) -> str | None:
        """Give it workers; or the reason why not."""
        from overdrive.datacache.source import start_method
        from overdrive.seams.torch.drawn_indices import draws_unseen_by_workers
        from overdrive.seams.torch.workers import start_methods

        settings = self._settings
        start = str(settings["start"])
        threads = int(settings["threads"]) if settings["workers"] else 1
        if threads > 1 and (start_method(loader) if start == "program" else start) == "fork":
            reason = "forked workers cannot use several threads safely (OpenMP's do not survive a fork)"
        elif not draws_unseen_by_workers(loader):
            reason = "its sampler is not one of torch's that draw unseen, or draws from the program's own generator"
        elif start != "program" and start not in start_methods():
            reason = f"this system cannot start workers by {start}"
        else:
            workers, prefetch, reason = self._room(loader)
            guarded = False
            if workers and not reason and (not loader.num_workers or self._differ(loader, workers)):
                guarded = not (unfit := self._try(loader))
                reason = "" if loader.num_workers else unfit  # the program's own may make more ahead all the same
            if not reason:
                self.before[loader] = _change(loader, settings, workers, prefetch, guarded)
                return None
        self.refused[loader] = reason
        return reason

    def _differ(self, loader: Any, workers: int) -> bool:
        """Whether its workers are to be others than the program's: more or fewer, or to live on. Those that live on
        anyhow hold its data set as it was: no others could take over from ours."""
        if loader.persistent_workers or self._settings["draws"] == "own":
            return False
        settings = self._settings
        return workers != loader.num_workers or bool(settings["persistent"]) or settings["start"] != "program"

    def _try(self, loader: Any) -> str:
        """Why a copy of its data set would not do what that does itself, in words; nothing if it would."""
        from overdrive.datacache.dry_run import fetched_in_worker
        from overdrive.datacache.key import settings
        from overdrive.datacache.source import Source
        from overdrive.forks.layout import Unfit

        try:
            self._tried[loader] = settings()
            source, draws = Source.of(loader), self._settings["draws"] == "own"
            self._fetched[loader] = fetched_in_worker(source, int(self._settings["workers"]), draws)
        except Unfit as error:
            return str(error)
        return ""

    def _room(self, loader: Any) -> tuple[int, int, str]:
        """Workers and prefetch that the shared memory has room for, or the reason why there is none."""
        workers, prefetch = int(self._settings["workers"]), int(self._settings["prefetch"])
        free = shared_memory.free_shared_memory()
        if not workers or free is None:
            return workers, prefetch, ""
        free = max(0, free - int(sum(self._promised.values()) / shared_memory.USABLE_SHARE))
        if free > _ROOMY_BATCH * (workers * prefetch + shared_memory.BESIDES):
            return workers, prefetch, ""
        from overdrive.datacache.cost.fetching import Fetching, batch_bytes
        from overdrive.forks.layout import Unfit

        try:
            size = batch_bytes(Fetching.by_loader(loader))
        except Unfit as error:
            return (
                0,
                0,
                f"{_PLACE} has only {megabytes(free)} free, and a batch could not be measured: {error}",
            )
        if size:
            workers, prefetch = shared_memory.fitting(workers, prefetch, size, free)
        if not workers:
            return (
                0,
                0,
                f"a batch takes {megabytes(size)}, too much for the {megabytes(free)} free in {_PLACE}",
            )
        self._promised[loader] = shared_memory.needed(workers, prefetch, size)
        return workers, prefetch, ""

    def open(self, loader: Any, call: Callable[[], Any]) -> Any:
        """
        Raises:
            NoWorkers: workers do not come to work, of which the program has none, or others.
        """
        from overdrive.datacache.source import start_method
        from overdrive.seams.torch.iterators import kept_open
        from overdrive.seams.torch.lasting_workers import open_while
        from overdrive.seams.torch.workers import script_not_run_again, started, threads_of_children, tried

        before = self.before[loader]
        # New interpreters, where the program itself has only forks, or no workers at all.
        own = self._settings["start"] == "program" and before["num_workers"] > 0
        anew = loader.num_workers > 0 and not own and start_method(loader) != "fork"
        # Where none begin, or the program's own would have failed as well, an error is the program's.
        as_it_is = not loader.num_workers or (before["persistent_workers"] and kept_open(loader) is not None)

        def start() -> Any:
            with threads_of_children(int(self._settings["threads"])):
                if not anew:
                    return call() if as_it_is else started(loader, call)
                with script_not_run_again():
                    iterator = (started if loader in self._proven else tried)(loader, call)
                self._proven[loader] = True
                return iterator

        if before["num_workers"] and loader in self._fallen:
            self.give_back(loader)
            return call()
        if not loader.num_workers or before["persistent_workers"]:
            return start()
        if before["num_workers"] and not loader.persistent_workers and loader not in self._fetched:
            return start()
        # An iterator that held its loader would be garbage in a cycle. Its queues end before its `__del__` then, its
        # workers never hear that they are to end, and PyTorch waits 5 s for each.
        this = ref(loader)

        def given_up() -> None:
            if (still := this()) is not None:
                self._fallen.add(still)

        return open_while(loader, start, lambda: self._copied_now(loader), not before["num_workers"], given_up)

    def _copied_now(self, loader: Any) -> Callable[[], bool]:
        """Workers are about to get a copy of the data set as it is now. Gives what tells whether it still is so.

        Raises:
            NoWorkers: they would not make the samples that are made here.
        """
        import torch

        from overdrive.changes.fingerprint import fingerprint
        from overdrive.datacache.key import settings
        from overdrive.datacache.reading_worker import OnlyReading
        from overdrive.datacache.source import start_method
        from overdrive.datacache.unchanged import Unchanged
        from overdrive.seams.torch.workers import NoWorkers

        copied = self._copied.get(loader)
        changed = copied is not None and copied.changed() is not None
        if loader in self._tried and (changed or self._tried[loader] != settings()) and (reason := self._try(loader)):
            raise NoWorkers(reason)
        if copied is None or changed:
            roots = (loader.dataset, loader.collate_fn)
            fetched = self._fetched.get(loader)
            read = (fetched.opened, fetched.called) if fetched else ()
            copied = Unchanged(roots, fingerprint(*roots), *read)
            self._copied[loader] = copied
            if fetched and isinstance(reading := loader.worker_init_fn, OnlyReading):
                reading.guard = copied.in_fork if start_method(loader) == "fork" else None
                reading.settles = fetched.settles
                reading.watched = None if self.before[loader]["num_workers"] else copied.watched_files()
        with_gradients = torch.is_grad_enabled()
        return lambda: copied.changed() is None and torch.is_grad_enabled() == with_gradients

    def give_back(self, loader: Any) -> None:
        """As it was; its workers end."""
        from overdrive.seams.torch.iterators import take_workers_back

        before = self.before.pop(loader, None)
        if before is not None:
            take_workers_back(loader, before)

    def dismiss(self) -> None:
        for loader in list(self.before):
            self.give_back(loader)


def suits(loader: Any) -> bool:
    """Whether it is map-style, and its epochs are long enough."""
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return False
    try:
        return len(loader) >= _FEWEST_BATCHES
    except TypeError:
        return False


def _change(loader: Any, settings: Settings, workers: int, prefetch: int, guarded: bool) -> dict[str, Any]:
    """Set the loader's attributes; returns what they were.

    Args:
        guarded: they hand over nothing but what the program's would. Where it is not, those stay, and make more ahead.
    """
    from torch.multiprocessing import get_context

    from overdrive.datacache.reading_worker import OnlyReading
    from overdrive.seams.torch.iterators import change, give_workers
    from overdrive.seams.torch.workers import WorkerStart

    wanted: dict[str, Any] = {name: loader.__dict__[name] for name in _CHANGED}
    wanted["prefetch_factor"] = prefetch if workers else None
    spread, threads = settings["affinity"] == "spread", 1
    if guarded or not loader.num_workers or not workers or settings["draws"] == "own":
        wanted["num_workers"] = workers
        wanted["persistent_workers"] = bool(workers and (settings["persistent"] or loader.persistent_workers))
        if workers and settings["start"] != "program":
            wanted[_CONTEXT] = get_context(str(settings["start"]))
        threads = int(settings["threads"])
    if workers and (spread or threads > 1):
        wanted["worker_init_fn"] = WorkerStart(spread, threads, loader.worker_init_fn)
    if workers and (guarded or not loader.num_workers):
        wanted["worker_init_fn"] = OnlyReading(wanted["worker_init_fn"], settings["draws"] == "own")
    return give_workers(loader, wanted) if workers else change(loader, wanted)


def megabytes(count: float | None) -> str:
    return f"{(count or 0) / 1e6:,.0f} MB"
