"""Technique `loader_workers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.machine import shared_memory
from overdrive.techniques.data.loader_workers.manager import Manager, megabytes, suits
from overdrive.techniques.technique import Knob, Settings, Technique, Value

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

# What the program's process itself spends on taking a batch from a worker: a message, a file of shared
# memory opened and mapped; 1.3 ms were seen on a busy virtual machine. A batch that is made in less than
# this is better made on the spot everywhere.
_HAND_OVER_SECONDS = 0.2e-3
# Below this many cores there is none that could be kept free of workers for the training.
_CORES_TO_SPREAD = 4
# A worker that the kernel puts aside for another process is back after some 10 ms. Meanwhile the loop takes the
# batches that it has ready: as many as it makes in twice that time, two of slow ones.
_HELD_UP_SECONDS = 0.02
_FEWEST_READY, _MOST_READY = 2, 8
_MOST_THREADS = 8
_PLACE = shared_memory.PLACE


class LoaderWorkers(Technique):
    """Fetches batches in worker processes, ahead of the training loop.

    What it does: sets the number of workers, how many batches each keeps ready, whether they live on from
    epoch to epoch, how they are started, on which cores and with how many threads they run, for every
    map-style `DataLoader` of the program. As many workers are tried as the measured cost of a batch asks
    for, with so many batches ready that a worker may be held up for a moment. Where their batches would not fit
    into /dev/shm, there are fewer workers, which may use several threads each, or none. They live on, and are
    started as the program has it, unless they are to use several threads; from 4 cores on, it is also tried to
    keep each on one core. Where none can be started, or idle ones have died, the program fetches for itself.

    When it helps: where the loop waits for data and cores (or a GPU's idle host) are free to make it.

    When it hurts: where the training itself needs all cores: on 2 cores, 2 workers gave 0.8 to 1.1 times
    the speed of none. Small data sets lose more by starting workers than they gain, and batches that are
    made in no time lose by being handed over.

    Contract: exact. Where the program has given a loader no workers, ours only read: a batch whose fetch draws random
    numbers, changes the data set, writes, prints or fails is fetched by the program's own process, as are all after it
    in that epoch. So is every batch from the first change of the data set on, which is looked at before each one;
    workers that live on are used again only while their copies hold. Where the program has workers of its own, which
    begin anew in each epoch, others do their work under the same guard, and these take over, with their own seeds,
    where one would not only read; those that live on stay as many. Samples are compared with the program's own in a
    trial, again where the number of threads or another setting changes. A sampler of the program's own, one that draws
    from the program's generator, and `SubsetRandomSampler`, whose indices may change, get no workers: theirs would be
    drawn earlier. With draws=own, each worker draws from a stream of its own, and the level falls to statistical.
    Iterable data sets are left alone, because workers would repeat their samples.

    What it watches: before each batch, as `sample_cache` does, whether the data set and the collate function are what
    the workers have a copy of; in a worker, whether a fetch does more than read, or reads a file that is not watched.
    What would escape: what escapes `sample_cache`; and a data set that finds out in another way than by the usual
    functions in which process it is. An index that a worker has been started for in another way than the program's is
    drawn at once.

    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading; for the shared memory
    https://github.com/pytorch/pytorch/issues/5040.
    """

    name = "loader_workers"
    programs = ("training", "inference")
    contract = Contract.EXACT
    fallback_contract = Contract.STATISTICAL
    targets = ("data",)
    expected_saving = 0.4
    survives = True
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
            return f"not even one worker's batches fit the {megabytes(facts.shared_memory)} free in {_PLACE}"
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
        manager = Manager(settings)

        def open_with_workers(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.seams.torch.iterators import kept_open
            from overdrive.seams.torch.loader_warnings import warned_as
            from overdrive.seams.torch.workers import NoWorkers

            if loader not in manager.before and loader not in manager.refused and suits(loader):
                reason = manager.take(loader)
                if reason and not manager.before:
                    seams.leave_out(self.name, reason)
            if loader not in manager.before:
                return call()
            try:
                before = manager.before[loader]
                goes_on = bool(before["num_workers"] and before["persistent_workers"]) and kept_open(loader) is not None
                with warned_as(int(before["num_workers"]), goes_on):
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
