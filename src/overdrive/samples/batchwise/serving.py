"""Random augmentation on whole batches: heads from a table, tails with the numbers that the program would draw.

Nothing is believed of a data set that was not tried: in a forked process its own batches and ours are made from the
same random states, and must be equal in every bit and leave the generators in the same states.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from overdrive.datacache.buffers import Buffers
from overdrive.datacache.cached_dataset import Kept
from overdrive.datacache.fingerprint import Fingerprint
from overdrive.datacache.forked import Tick, in_child
from overdrive.datacache.layout import Layout, Unfit, layout_of, tensors_of
from overdrive.datacache.loader import _Fetcher, _instead_of_workers
from overdrive.datacache.manager import Keeper
from overdrive.datacache.randomness import States, reseed
from overdrive.datacache.source import Source, spread
from overdrive.datacache.table import same_bits
from overdrive.samples.batchwise.chain import HeadSource
from overdrive.samples.batchwise.tail import Tail

_SAMPLES = 24
_BATCHES = (1, 2, 3, 5, 8, 13, 16, 16, 24, 24)  # odd numbers of images too: numbers are drawn two at a time
_FEWEST_BATCHES, _SECONDS = 7, 2.0  # tried, where fetching is slow


class AugmentKeeper(Keeper):
    """Keeps what comes out of the heads, of loaders whose batches can be made from them."""

    def _source(self, loader: Any) -> Source:
        return replace(HeadSource.of(loader), share=self._shares.of(loader))

    def keep(self, source: Source, earlier: Fingerprint | None = None) -> Kept:
        assert isinstance(source, HeadSource)
        told = in_child(lambda tick: _examine(source, tick))
        kept = super().keep(source, earlier)
        source.tail.leaf = int(told["leaf"])
        source.tail.in_bulk = bool(told["in_bulk"])
        source.tail.mode = told["mode"]
        source.tail.fit(kept.table.layout.leaves[source.tail.leaf].sizes)
        return kept


def serve(kept: Kept, loader: Any, call: Callable[[], Any]) -> Any:
    """Open the loader; `call` gives torch's iterator. Its fetcher is ours from then on."""
    kept.settle()
    if loader.num_workers == 0:
        iterator = call()
        real = getattr(iterator, "_dataset_fetcher", None)
        if real is not None and not isinstance(real, _Fetcher):
            iterator._dataset_fetcher = _Augmenting(kept, real, live=True, buffers=Buffers())
        return iterator
    kept_open = loader._iterator if loader.persistent_workers else None
    before = getattr(kept_open, "_dataset_fetcher", None)
    if kept_open is not None and not isinstance(before, _Augmenting):
        return call()  # workers that lived before us, in random states that we do not know
    if not kept.table.complete:
        try:
            kept.fill(in_forks=True)
        except Unfit as error:
            kept.drop(str(error))
    if not kept.table.complete or kept.dropped is not None:
        return call()
    left = list(kept_open._sampler_iter._drawn) if kept_open is not None else []
    iterator = _instead_of_workers(kept, loader, call)
    if isinstance(before, _Augmenting):
        before.begin_again(left)
    else:
        real = iterator._dataset_fetcher._real
        iterator._dataset_fetcher = _InsteadOfWorkers(kept, real, loader.num_workers, iterator._base_seed)
    return iterator


class _Augmenting(_Fetcher):
    """Stands for torch's fetcher: heads from the table (fetched where they are not there yet), then the tail."""

    def fetch(self, indices: Any) -> Any:
        import torch

        heads = self._heads(indices)
        if heads is not None:
            tail = _tail_of(self._kept)
            before = States.now() if tail.own else None
            state = torch.get_rng_state()
            try:
                return _tailed(tail, self._kept.table.layout, heads)
            except Exception as error:  # ours: the program must not meet it. Or its own, which comes again
                torch.set_rng_state(state)
                if before is not None:
                    before.restore()
                self._kept.drop(f"{type(error).__name__}: {error}")
        return self._real.fetch(indices)

    def begin_again(self, left: list[Any]) -> None:
        """A new epoch of workers that live on; `left` are the batches that they made for nobody."""

    def _heads(self, indices: Any) -> Any:
        """A batch of heads; None where the program must fetch for itself, with all generators as they were."""
        kept = self._kept
        before: States | None = None
        try:
            if kept.dropped is not None or (self._live and kept.touched() and kept.changed()):
                return None
            rows = kept.rows(indices)
            if rows is None:
                if kept.source.share is None:
                    kept.drop("its sampler gives other things than lists of whole numbers")
                return None
            absent = kept.table.absent(rows)
            if not len(absent):
                return kept.table.gather(rows, buffers=self._buffers)
            before = States.now()
            assert isinstance(kept.source, HeadSource)
            heads = kept.fetch_rest(kept.source.by_index, indices, rows, absent)
        except Exception as error:  # its own error comes again when it fetches for itself
            if isinstance(error, Unfit):
                kept.drop(str(error))
            heads = None
        if before is not None and (heads is None or kept.dropped is not None):
            before.restore()
        return heads if kept.dropped is None else None


class _InsteadOfWorkers(_Augmenting):
    """As torch's workers would draw: each from a generator of its own, taking turns."""

    def __init__(self, kept: Kept, real: Any, workers: int, seed: int) -> None:
        import torch

        super().__init__(kept, real, live=False, buffers=Buffers())
        self._states = [torch.Generator().manual_seed(seed + worker).get_state() for worker in range(workers)]
        self._turn = 0

    def fetch(self, indices: Any) -> Any:
        return self._in_turn(lambda: super(_InsteadOfWorkers, self).fetch(indices))

    def begin_again(self, left: list[Any]) -> None:
        tail = _tail_of(self._kept)
        for indices in left:
            self._in_turn(partial(tail.draw, len(indices)))
        self._turn = 0

    def _in_turn(self, act: Callable[[], Any]) -> Any:
        import torch

        worker, self._turn = self._turn, (self._turn + 1) % len(self._states)
        own = torch.get_rng_state()
        torch.set_rng_state(self._states[worker])
        try:
            return act()
        finally:
            self._states[worker] = torch.get_rng_state()
            torch.set_rng_state(own)


def _tail_of(kept: Kept) -> Tail:
    assert isinstance(kept.source, HeadSource)
    return kept.source.tail


def _tailed(tail: Tail, layout: Layout, heads: Any) -> Any:
    """The program's batch, from a batch of heads, which is ours to change."""
    tensors = tensors_of(heads, layout.structure) or []
    assert tail.leaf is not None
    tensors[tail.leaf] = tail(tensors[tail.leaf])
    return layout.build(tensors)


# -- the trial, in a forked process -----------------------------------------------------------------


def _examine(source: HeadSource, tick: Tick) -> dict[str, Any]:
    """Make batches in both ways from the same random states.

    Raises:
        Unfit: they differ, or a worker would begin in another random state than torch gives it.
    """
    _enter_worker(source)
    indices = source.indices(spread(source.count, _SAMPLES))
    source = source.by_index
    layout = layout_of(source.fetch(indices[:1]))  # which finds the images among its leaves
    leaf = source.tail.leaf or 0
    source.tail.fit(layout.leaves[leaf].sizes)
    for in_bulk in (True, False) if source.tail.in_bulk else (False,):
        source.tail.in_bulk = in_bulk
        wrong = _difference(source, indices, tick)
        if wrong is None:
            return {"leaf": leaf, "in_bulk": in_bulk, "mode": source.tail.mode}
    raise Unfit(wrong or "")


def _enter_worker(source: HeadSource) -> None:
    for number in {0, source.workers - 1} if source.workers else ():
        reseed(number + 1)
        before = States.now(with_cuda=False)
        source.whole.enter_worker(number)
        if not bool((before.torch == States.now(with_cuda=False).torch).all()):
            raise Unfit("its worker_init_fn sets torch's random generator")


def _difference(source: HeadSource, indices: list[int], tick: Tick) -> str | None:
    """What differs between its own batches and ours, or None."""
    chosen = random.Random(0)
    began = time.monotonic()
    layout: Layout | None = None
    for number, count in enumerate(_BATCHES):
        picked = [chosen.choice(indices) for _ in range(count)]
        reseed(number)
        own = source.whole.fetch(picked)
        after = States.now(with_cuda=False)
        reseed(number)
        ours = _made(source, picked)
        layout = layout or layout_of(own)
        if not same_bits(own, ours, layout):
            return "its batches, made from the same random numbers, come out different"
        if not after.same(States.now(with_cuda=False)):
            return "its transforms draw other random numbers than expected"
        tick(count)
        if number + 1 >= _FEWEST_BATCHES and time.monotonic() - began > _SECONDS:
            break
    return None


def _made(source: HeadSource, indices: list[int]) -> Any:
    before = States.now(with_cuda=False)
    heads = source.fetch(indices)
    if not before.same(States.now(with_cuda=False)):
        raise Unfit("what comes before its first known random transform draws random numbers too")
    return _tailed(source.tail, layout_of(heads), heads)
