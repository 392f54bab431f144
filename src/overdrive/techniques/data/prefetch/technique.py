"""Technique `prefetch`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.datacache.offers import Trained
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.data.prefetch.iterator import PrefetchManager

_LEAST_SHARE = 0.05


class Prefetch(Technique):
    """Makes the next batches while the model computes, with the very same random numbers.

    What it does: a forked copy of the program goes on with the loader's iterator and makes the next batches,
    random augmentation included. The program still draws each index itself; a batch made ahead is handed out
    where that index, and the random states that the fetch started from, are what it was made from, and the
    random states are then set to what they would be. Beside a GPU a batch is also copied there in the meantime,
    and the program's own `.to(device)` finds it there. Where they are not, the batch is fetched as without us,
    and the copy starts again from there; where that happens often (three times, less one for every ten batches
    that came true) the loader is left alone.

    Batches that `sample_cache` gathers, or `batch_fetch` from tensors and from arrays that nobody can write to,
    are gathered by a thread instead, two batches early, where the sampler is torch's own or the loader had
    workers: nobody can tell then when an index was drawn. Copies to the GPU use a stream and events, and memory
    of torch's allocators, which hand it out again when the streams are done with it: a ring of buffers of our
    own would save nothing.

    When it helps: where the loop waits for data in a `DataLoader` without workers, and a core is free: above all
    beside a GPU, and for random augmentation, which no cache can keep. A program that draws from the same
    generator between its batches (dropout on the CPU, with augmentation drawn from torch) gains nothing. Beside
    `sample_cache`, waiting for 512 cached CIFAR images fell from 1.2-1.5 ms to 0.3-0.4 ms, where the processor had
    nothing else to do for 3 ms a step.

    When it hurts: where the training itself needs all cores. Each epoch forks once: some milliseconds, and more
    page faults in a process of many gigabytes. A program without a `DataLoader`, which cuts its own batches, is
    left alone: what its function would do, and what it reads, is known only when it has run.

    Contract: exact. Fetching is tried in a forked process before: it must leave the data set as it was and give
    the same bits again from the same random states; and two batches are made both here and in the copy, and
    compared in every bit, before it is trusted. Errors and printing come from the program's own fetch, at the
    same batch. Large arrays that the program overwrites in place during an epoch are looked at now and then only.

    Source: the idea is that of tf.data's `prefetch`, https://www.tensorflow.org/guide/data_performance#prefetching;
    for what forked workers may do see https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading.
    """

    name = "prefetch"
    family = "data"
    contract = Contract.EXACT
    targets = ("data",)
    expected_saving = 0.4
    order = 14  # after those who gather samples or start workers: what they serve is left to them
    knobs = (Knob("depth", 3, "batches that are made ahead", low=1, high=16),)

    def __init__(self) -> None:
        self.manager: PrefetchManager | None = None  # of the session that came last

    @property
    def reasons(self) -> list[str]:
        """Why loaders were refused."""
        return self.manager.reasons if self.manager else []

    def applies(self, facts: Facts) -> str | None:
        # Beside a GPU, workers may have been left out for the cache, whose batches still have to travel.
        if not any(loader.map_style and (not loader.workers or facts.device == "cuda") for loader in facts.loaders):
            return "the program has no map-style DataLoader without workers"
        if facts.share("data") < _LEAST_SHARE:
            return f"waiting for data is only {facts.share('data'):.0%} of a step"
        if facts.cores < 2:
            return "there is one core, which the training needs"
        return None

    def install(self, seams: Seams, settings: Settings) -> Handle:
        self.manager = None
        trained = Trained()

        def arrives() -> None:
            import torch

            if torch.version.cuda or torch.version.hip:  # else there is nowhere to copy to
                seams.optimizer_made.subscribe(trained.made)
                seams.tensor_moved.subscribe(moved)

        def moved(tensor: Any, call: Callable[[Any], Any], device: Any) -> Any:
            return self.manager.offers.moved(tensor, call, device) if self.manager else call(device)

        def opens(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.techniques.data.prefetch.iterator import PrefetchManager

            if self.manager is None:
                refused = functools.partial(seams.leave_out, self.name)
                self.manager = PrefetchManager(int(settings["depth"]), refused, lambda: trained.device)
            iterator = call()
            self.manager.attend(loader, iterator)
            return iterator

        def close() -> None:
            if self.manager is not None:
                self.manager.close()

        seams.framework_arrived.subscribe(arrives)
        seams.loader_opens.subscribe(opens)
        seams.on_undo(close)
        return seams.handle()
