"""Technique `prefetch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.datacache.offers import OffersHandle
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.data.prefetch.prefetcher import Prefetcher

_LEAST_SHARE = 0.05


class Prefetch(Technique):
    """Gathers the next batches of cached samples while the model computes, and starts their copy to the GPU.

    What it does: where batches come from the table of `sample_cache` or `device_resident`, a thread gathers the next
    ones, two early. Beside a GPU, each is also copied there in the meantime, and the program's own `.to(device)` finds
    the copy. The sampler must be torch's own, or the loader have workers in the program: nobody can tell then when an
    index was drawn. Copies to the GPU use a stream and events, and memory of torch's allocators, which hand it out
    again when the streams are done with it: a ring of buffers of our own would save nothing.

    When it helps: beside `sample_cache`, where batches are large and a core is free, above all beside a GPU. Waiting
    for 512 cached CIFAR images fell from 1.2-1.5 ms to 0.3-0.4 ms, where the processor had nothing else to do for 3 ms
    a step. On a CPU, batches that are gathered in less than 0.3 ms are left alone.

    When it hurts: where the training itself needs all cores. Without `sample_cache` or `device_resident` in the plan it
    does nothing and leaves itself out: a data set's own fetch may draw random numbers, and is not left to a thread.

    What it watches: before each batch is handed out, what `sample_cache` looks at, and whether the program's own next
    indices are those that it was gathered for; on a GPU also how often the batch was written to. What would escape:
    what escapes `sample_cache`; on a GPU, a write to a batch in main memory through a numpy view or `.data` before it
    is sent there.

    Contract: exact. What is gathered from a complete table is a function of the indices alone: no random number is
    drawn, and no code of the program's runs. A batch is handed out only where the program's own next index is the one
    it was gathered for, and the data set is what it was.

    Source: the idea is that of tf.data's `prefetch`, https://www.tensorflow.org/guide/data_performance#prefetching.
    """

    name = "prefetch"
    programs = ("training", "inference")
    contract = Contract.EXACT
    computes = False
    targets = ("data",)
    expected_saving = 0.4
    switchable = True
    survives = True
    order = 14  # after those who keep samples: it gathers from their tables
    knobs = (Knob("depth", 2, "batches that are gathered ahead", low=1, high=16),)

    def applies(self, facts: Facts) -> str | None:
        if not any(loader.map_style for loader in facts.loaders):
            return "the program has no map-style DataLoader"
        if facts.items_draw():
            return "fetching an item draws random numbers, so that no batch comes from cached samples"
        if facts.share("data") < _LEAST_SHARE:
            return f"waiting for data is only {facts.share('data'):.0%} of a step"
        if facts.cores < 2:
            return "there is one core, which the training needs"
        return None

    def install(self, seams: Seams, settings: Settings) -> Handle:
        return PrefetchHandle(seams, int(settings["depth"]))


class PrefetchHandle(OffersHandle):
    """While it is off, batches are gathered when the program asks for them."""

    def __init__(self, seams: Seams, depth: int) -> None:
        self.prefetcher: Prefetcher | None = None
        self._depth = depth
        super().__init__(seams)

    def opens(self, loader: Any, call: Callable[[], Any]) -> Any:
        from overdrive.datacache.loader import kept_by
        from overdrive.techniques.data.prefetch.prefetcher import Prefetcher

        iterator = call()
        if kept_by(iterator) is None and self._seams.off - {Prefetch.name}:
            return iterator  # who keeps samples may be on again in the next epoch
        self.prefetcher = self.prefetcher or Prefetcher(
            self._depth,
            self.offers,
            on_refused=lambda reason: self._seams.leave_out(Prefetch.name, reason),
            device=lambda: self._trained.device,
            wanted=lambda: self.active,
        )
        self.prefetcher.attend(loader, iterator)
        return iterator

    def undo(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.close()
