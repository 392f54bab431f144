"""Technique `loader_workers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.machine import shared_memory
from overdrive.techniques.technique import Knob, Settings, Technique, Value

if TYPE_CHECKING:
    from overdrive.datacache.dry_run import Fetched
    from overdrive.datacache.unchanged import Unchanged
    from overdrive.seams.hub import Handle, Seams

# Starting workers takes tens of milliseconds; an epoch of fewer batches does not earn that back.
_FEWEST_BATCHES = 8
# What the program's process itself spends on taking a batch from a worker: a message, a file of shared
# memory opened and mapped; 1.3 ms were seen on a busy virtual machine. A batch that is made in less than
# this is better made on the spot everywhere.
_HAND_OVER_SECONDS = 0.2e-3
# Below this many cores there is none that could be kept free of workers for the training.
_CORES_TO_SPREAD = 4
# A batch is measured before workers start only where the shared memory has less room than this for each
# of those in flight: larger batches are hardly seen, and measuring takes a fork.
_ROOMY_BATCH = 1 << 30
# A worker that the kernel puts aside for another process is back after some 10 ms. Meanwhile the loop takes the
# batches that it has ready: as many as it makes in twice that time, two of slow ones.
_HELD_UP_SECONDS = 0.02
_FEWEST_READY, _MOST_READY = 2, 8
_MOST_THREADS = 8
_PLACE = shared_memory.PLACE
_CONTEXT = "_DataLoader__multiprocessing_context"  # how a DataLoader keeps it
_CHANGED = ("num_workers", "prefetch_factor", "persistent_workers", "worker_init_fn", _CONTEXT)


class LoaderWorkers(Technique):
    """Fetches batches in worker processes, ahead of the training loop.

    What it does: sets the number of workers, how many batches each keeps ready, whether they live on from
    epoch to epoch, how they are started, on which cores and with how many threads they run, for every
    map-style `DataLoader` of the program. As many workers are tried as the measured cost of a batch asks
    for, with so many batches ready that a worker may be held up for a moment. Where their batches would not fit
    into /dev/shm, there are fewer workers, which may use several threads each, or none. They live on, and are
    started as the program has it, unless they are to use several threads; from 4 cores on, it is also tried to
    keep each on one core.

    When it helps: where the loop waits for data and cores (or a GPU's idle host) are free to make it.

    When it hurts: where the training itself needs all cores: on 2 cores, 2 workers gave 0.8 to 1.1 times
    the speed of none. Small data sets lose more by starting workers than they gain, and batches that are
    made in no time lose by being handed over.

    Contract: exact. Where the program has given a loader no workers, ours only read: a batch whose fetch draws random
    numbers, changes the data set, writes, prints or fails is fetched by the program's own process, as are all after it
    in that epoch. So is every batch from the first change of the data set on, which is looked at before each one;
    workers that live on are used again only while their copies hold. Samples are compared with the program's own in a
    trial, again where the number of threads or another setting changes. A sampler of the program's own, one that draws
    from the program's generator, and `SubsetRandomSampler`, whose indices may change, get no workers: theirs would be
    drawn earlier. With draws=own, each worker draws from a stream of its own, and the level falls to statistical.
    Iterable data sets are left alone, because workers would repeat their samples.

    What would escape: as of `sample_cache`; and a data set that finds out in another way than by the usual functions in
    which process it is. An index that a worker has been started for in another way than the program's is drawn at once.

    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading; for the shared memory
    https://github.com/pytorch/pytorch/issues/5040.
    """

    name = "loader_workers"
    family = "data"
    contract = Contract.EXACT
    fallback_contract = Contract.STATISTICAL
    targets = ("data",)
    expected_saving = 0.4
    order = 12
    knobs = (
        Knob("workers", 2, "processes that fetch batches; 0 fetches in the loop itself", low=0, high=128),
        Knob("prefetch", 2, "batches that each worker keeps ready", low=1, high=64),
        Knob("persistent", True, "workers live on from epoch to epoch"),
        Knob(
            "start",
            "program",
            "how workers are started; program: as the program has it",
            choices=("program", "fork", "forkserver", "spawn"),
        ),
        Knob(
            "affinity",
            "none",
            "spread: each worker stays on one core, and the first is left to the main thread",
            choices=("none", "spread"),
        ),
        Knob(
            "draws",
            "refused",
            "of a data set that draws random numbers; own: each worker from a stream of its own, which is statistical",
            choices=("refused", "own"),
        ),
        Knob("threads", 1, "threads of an operation in a worker; more than one not with fork", low=1, high=64),
    )

    def applies(self, facts: Facts) -> str | None:
        loader = _most_waited_for(facts)
        if loader is None:
            return "the program has no map-style DataLoader"
        if facts.share("data") < 0.05:
            return f"waiting for data is only {facts.share('data'):.0%} of a step"
        made = loader.seconds_to_make
        if made is not None and made < _HAND_OVER_SECONDS:
            return f"a batch is made in {made * 1e6:.0f} µs, less than handing it over from a worker takes"
        if _fitted(facts, loader, 1, 1) == (0, 0):
            return f"not even one worker's batches fit the {_megabytes(facts.shared_memory)} free in {_PLACE}"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        loader = _most_waited_for(facts)
        now = loader.workers if loader else 0
        tries: list[dict[str, Value]] = []
        ready = _ready(loader)
        own = {"draws": "own"} if facts.items_draw() else {}
        for count in _counts(facts, loader):
            workers, prefetch = _fitted(facts, loader, count, ready)
            if not workers or workers == now:
                continue
            tries.append({"workers": workers, "prefetch": prefetch, "persistent": True, **own})
            threads = min(facts.cores // workers, _MOST_THREADS)
            if workers < count and threads > 1:
                # Memory allows no more of them: these may use the other cores, which forked ones cannot.
                tries.append({**tries[-1], "start": "forkserver", "threads": threads})
        if now:
            tries.append({"workers": now, "prefetch": ready, "persistent": True})  # the same number, but persistent
        if facts.cores >= _CORES_TO_SPREAD and tries:
            tries.append({**tries[0], "affinity": "spread"})
        return [each for place, each in enumerate(tries) if each not in tries[:place]][:4]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        manager = _Manager(settings)

        def open_with_workers(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.seams.torch.loader_warnings import warned_as
            from overdrive.seams.torch.workers import NoWorkers

            if loader not in manager.before and loader not in manager.refused and _suits(loader):
                reason = manager.take(loader)
                if reason and not manager.before:
                    seams.leave_out(self.name, reason)
            if loader not in manager.before:
                return call()
            try:
                with warned_as(workers=bool(manager.before[loader]["num_workers"])):
                    return manager.open(loader, call)
            except NoWorkers as failure:
                manager.give_back(loader)
                seams.leave_out(self.name, str(failure))
                return call()

        seams.loader_opens.subscribe(open_with_workers)
        seams.on_undo(manager.dismiss)
        return seams.handle()


def _most_waited_for(facts: Facts) -> LoaderFacts | None:
    loaders = [loader for loader in facts.loaders if loader.map_style]
    return max(loaders, key=lambda loader: loader.seconds_per_batch, default=None)


def _counts(facts: Facts, loader: LoaderFacts | None) -> list[int]:
    """How many workers are worth a try: first as many as keep up with the loop, as far as there are cores."""
    made = loader.seconds_to_make if loader else None
    if made is None or not facts.step_seconds:
        return [count for count in dict.fromkeys((facts.cores, facts.cores // 2, 1)) if count]
    at_work = facts.step_seconds * (1 - facts.share("data"))
    needed = math.ceil(made / max(at_work, 1e-6))
    most = min(facts.cores, max(1, needed))
    if most < facts.cores or most == 1:
        # One more than by the mean: the cost of batches differs.
        return list(dict.fromkeys((most, min(most + 1, facts.cores))))
    return list(dict.fromkeys((most, max(1, most - 1), max(1, most // 2))))  # the training needs cores too


def _ready(loader: LoaderFacts | None) -> int:
    """How many batches each worker should keep ready."""
    made = loader.seconds_to_make if loader else None
    return min(_MOST_READY, max(_FEWEST_READY, math.ceil(_HELD_UP_SECONDS / made))) if made else _FEWEST_READY


def _fitted(facts: Facts, loader: LoaderFacts | None, workers: int, prefetch: int) -> tuple[int, int]:
    """So many workers and batches ahead, or as many as the shared memory seen in a trial has room for."""
    if loader is None or not loader.batch_bytes or facts.shared_memory is None:
        return workers, prefetch
    mine = shared_memory.needed(loader.workers, loader.prefetch, loader.batch_bytes)  # they make room
    return shared_memory.fitting(workers, prefetch, loader.batch_bytes, facts.shared_memory + mine)


def _megabytes(count: float | None) -> str:
    return f"{(count or 0) / 1e6:,.0f} MB"


class _Manager:
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
            if workers and not loader.num_workers and not reason:
                reason = self._try(loader)
            if not reason:
                self.before[loader] = _change(loader, settings, workers, prefetch)
                return None
        self.refused[loader] = reason
        return reason

    def _try(self, loader: Any) -> str:
        """Why a copy of its data set would not do what that does itself, in words; nothing if it would."""
        from overdrive.datacache.dry_run import fetched_in_worker
        from overdrive.datacache.key import settings
        from overdrive.datacache.layout import Unfit
        from overdrive.datacache.source import Source

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
        from overdrive.datacache.layout import Unfit

        try:
            size = batch_bytes(Fetching.by_loader(loader))
        except Unfit as error:
            return 0, 0, f"{_PLACE} has only {_megabytes(free)} free, and a batch could not be measured: {error}"
        if size:
            workers, prefetch = shared_memory.fitting(workers, prefetch, size, free)
        if not workers:
            return 0, 0, f"a batch takes {_megabytes(size)}, too much for the {_megabytes(free)} free in {_PLACE}"
        self._promised[loader] = shared_memory.needed(workers, prefetch, size)
        return workers, prefetch, ""

    def open(self, loader: Any, call: Callable[[], Any]) -> Any:
        """
        Raises:
            NoWorkers: workers that are started in another way than the program's do not come to work.
        """
        from overdrive.datacache.source import start_method
        from overdrive.seams.torch.lasting_workers import open_while
        from overdrive.seams.torch.workers import script_not_run_again, threads_of_children, tried

        # New interpreters, where the program itself has only forks, or no workers at all.
        own = self._settings["start"] == "program" and self.before[loader]["num_workers"] > 0
        anew = loader.num_workers > 0 and not own and start_method(loader) != "fork"

        def start() -> Any:
            with threads_of_children(int(self._settings["threads"])):
                if not anew:
                    return call()
                with script_not_run_again():
                    iterator = call() if loader in self._proven else tried(loader, call)
                self._proven[loader] = True
                return iterator

        before = self.before[loader]
        if not loader.num_workers or before["persistent_workers"]:
            return start()
        if before["num_workers"] and not loader.persistent_workers:
            return start()
        return open_while(loader, start, lambda: self._copied_now(loader), not before["num_workers"])

    def _copied_now(self, loader: Any) -> Callable[[], bool]:
        """Workers are about to get a copy of the data set as it is now. Gives what tells whether it still is so.

        Raises:
            NoWorkers: they would not make the samples that are made here.
        """
        import torch

        from overdrive.datacache.fingerprint import fingerprint
        from overdrive.datacache.key import settings
        from overdrive.datacache.reading_worker import OnlyReading
        from overdrive.datacache.source import start_method
        from overdrive.datacache.unchanged import Unchanged
        from overdrive.seams.torch.workers import NoWorkers

        if loader in self._tried and self._tried[loader] != settings() and (reason := self._try(loader)):
            raise NoWorkers(reason)
        copied = self._copied.get(loader)
        if copied is None or copied.changed() is not None:
            roots = (loader.dataset, loader.collate_fn)
            fetched = self._fetched.get(loader)
            copied = Unchanged(roots, fingerprint(*roots), fetched.opened if fetched else ())
            self._copied[loader] = copied
            if fetched and isinstance(reading := loader.worker_init_fn, OnlyReading):
                reading.guard = copied.in_fork if start_method(loader) == "fork" else None
                reading.settles = fetched.settles
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


def _suits(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return False
    try:
        return len(loader) >= _FEWEST_BATCHES
    except TypeError:
        return False


def _change(loader: Any, settings: Settings, workers: int, prefetch: int) -> dict[str, Any]:
    """Set the loader's attributes; returns what they were."""
    from torch.multiprocessing import get_context

    from overdrive.datacache.reading_worker import OnlyReading
    from overdrive.seams.torch.iterators import change, give_workers
    from overdrive.seams.torch.workers import WorkerStart

    wanted: dict[str, Any] = {name: loader.__dict__[name] for name in _CHANGED} | {
        "num_workers": workers,
        "prefetch_factor": prefetch if workers else None,
        "persistent_workers": bool(workers and settings["persistent"]),
    }
    if workers and settings["start"] != "program":
        wanted[_CONTEXT] = get_context(str(settings["start"]))
    spread, threads = settings["affinity"] == "spread", int(settings["threads"])
    if workers and (spread or threads > 1):
        wanted["worker_init_fn"] = WorkerStart(spread, threads, loader.worker_init_fn)
    if workers and not loader.num_workers:
        wanted["worker_init_fn"] = OnlyReading(wanted["worker_init_fn"], settings["draws"] == "own")
    return change(loader, wanted) if loader.num_workers or not workers else give_workers(loader, wanted)
