"""Technique `sample_cache`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class SampleCache(Technique):
    """Decodes each sample once, and gathers batches from the stacked samples from then on.

    What it does: takes the samples of a map-style data set as the program fetches them, keeps them stacked
    in a file that is mapped into memory, and serves later batches from there, in the sampler's own order.
    While the program trains, forked processes fetch what it will want next; they run only where a core would
    be idle, one core is left to the program, and they end with it. The file outlives the process: the next run
    of the same program on the same files starts with it. It lies in `$OVERDRIVE_CACHE`, else in
    `overdrive/samples` in the user's cache folder, and takes at most a fifth of the free disk. Of several
    processes of a machine that train on the same data, its ranks, say, each writes into it what it fetches. A
    loader whose sampler asks for the same samples in each epoch (`DistributedSampler` with `shuffle=False`) gets
    a table of these alone; where the ranks shuffle the whole data set among them in each epoch
    (`DistributedSampler` otherwise), each machine needs all of it. With `folder`, samples come from where
    `overdrive pack` wrote them.

    Where batches are more than samples stacked (they hold names, a collate function of the program's own pads texts,
    sorts, mixes or masks, each sample is a batch of its own shape), and there are no workers, each sample is kept by
    itself, and the collate function is called with samples made anew from what is kept.

    Switched off, a loader without workers fetches for itself from the next batch on, one with workers from its next
    epoch on. One whose workers live on stays as it was first opened: they wait, in case they are needed.

    When it helps: where decoding and transforming samples takes more time than copying them: images, audio,
    anything parsed. Workers are not needed then, and their cores are free for the training.

    When it hurts: where samples are cheap already, or where the stacked samples are larger than the memory:
    they then lie on disk alone, whose speed decides. Where they fit neither their share of the memory nor that
    of the disk, numbers of few values (pictures, normalised or not) are kept as a byte each, with a table of the
    values; where that does not fit either, it refuses. A first run spends time on writing them down; an opening on
    checking them (2 GB/s for each core). While others fetch, memory that the program writes to is there twice: no
    more than half of what is free, or it fetches alone.

    Contract: exact. A data set is tried in a forked process before: its samples must come out the same in
    every bit under other random states, leave it and all random generators as they were, and be just
    stacked into batches, or be things made for each fetch that can be written down: numbers, texts, arrays,
    tensors and pictures in lists, tuples and dicts. Random augmentation is found out by that and refused. The
    stored samples are known by a hash of the data set's attributes, code and files, and of the versions and the
    installed files of the libraries that it uses. All draws of samplers and loaders happen as before.

    What it watches: before each batch, every object that can be reached from the data set and the collate function,
    their containers, arrays, hooks and generators; memory beside views, where code may read it; the globals, closures,
    classes and library functions that their code names, and all methods of the library classes among them; of what
    libraries come to by themselves in the tried samples the functions and plain values; the environment that it reads;
    the files that were named or opened; some settings of the process. What changes is fetched anew from that batch on.
    A data set that holds what cannot be watched is left out, and so is one whose code may ask what hangs on the moment
    or the process: a clock, threads, limits, signals, the state of a global generator without a draw, a generator that
    seeds itself (`default_rng()`) and is kept nowhere. A fetch that draws, writes, prints or changes something, rarely
    as it may be, is found by its first real fetch, which every sample has, and nothing is served from then on. Of
    workers of the program's own, files and shared memory are watched before each batch, as they see no other change;
    from the first on, they make the batches themselves. All through a run some of what is served is made again in a
    forked copy of the program and compared (docs/data.md): a change that nobody watched is found by that, some seconds
    or minutes late.

    What would escape: such a change to few samples, or where no copy can be forked; writes by another machine, or by
    another process through a mapping of a file; files that code in C opens, or asks for, by names put together from
    parts of which none is a folder's path; a library's function that seeds itself, for few samples; those that a sample
    that was not tried asks for (`os.path.exists`) in other folders than the tried ones (with Python 3.10, all that
    `pathlib` asks for); with workers that begin anew in each epoch, a file that changes after an attribute has, in the
    same epoch; what a C library keeps to itself, and a clock that one reads; a write past Python to a descriptor
    (`os.write`); what another library than Python's keeps in tables of its own, and what it comes to for none of the
    tried samples; an edit of a library's files where they are installed.

    Source: the idea is that of TensorFlow's `Dataset.cache`, https://www.tensorflow.org/guide/data_performance;
    for the cost of fetching in Python see https://docs.ffcv.io/.
    """

    name = "sample_cache"
    programs = ("training", "inference")
    contract = Contract.EXACT
    computes = False
    targets = ("data",)
    expected_saving = 0.8
    switchable = True
    survives = True
    order = 10
    knobs = (
        Knob("memory_share", 0.5, "share of the available memory that samples may take", low=0.05, high=0.9),
        Knob("folder", "", "where `overdrive pack` wrote the samples; no others are kept then"),
    )

    def applies(self, facts: Facts) -> str | None:
        if facts.items_draw():
            return "fetching an item draws random numbers, so that no sample comes twice"
        return facts.no_samples_to_gain_by()

    def expected_step_saving(self, facts: Facts) -> float:
        return facts.taken_by_data() * self.expected_saving

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"memory_share": self.defaults()["memory_share"]}]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        share, folder = float(settings["memory_share"]), str(settings.get("folder", ""))
        if folder:
            from overdrive.datacache.manager import shared
            from overdrive.datacache.store import StoreUnavailable

            try:  # now, before another technique asks for samples
                shared(seams, share, folder)
            except StoreUnavailable as error:
                raise CannotInstall(str(error)) from None

        iterators: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # opened while it was off, and their loaders
        unserved: WeakSet[Any] = WeakSet()  # loaders whose workers live on, and were started while it was off

        def opens(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.datacache.loader import stays_served
            from overdrive.seams.torch.iterators import kept_open

            if handle.active and not (loader in unserved and kept_open(loader) is not None):
                return served(loader, call)
            if not handle.active and stays_served(loader):
                return served(loader, call)
            iterator = call()
            if not loader.num_workers:
                iterators[iterator] = loader
            elif loader.persistent_workers:
                unserved.add(loader)
            return iterator

        def served(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.datacache.manager import shared

            manager = shared(seams, share, user=self.name)
            return manager.open(loader, call, lambda reason: seams.leave_out(self.name, reason))

        def on() -> None:
            for iterator, loader in list(iterators.items()):
                served(loader, partial(_same, iterator))
            iterators.clear()

        def starts() -> None:
            from overdrive.datacache.manager import begin_early

            begin_early(seams)

        if not folder:
            seams.framework_arrived.subscribe(starts)
        seams.loader_opens.subscribe(opens, always=True)
        handle = seams.handle(on=on)
        return handle


def _same(iterator: Any) -> Any:
    return iterator
