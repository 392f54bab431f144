"""Technique `batch_size`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_GROWTH = {"kept": 0.0, "sqrt": 0.5, "linear": 1.0}  # exponent of the factor by which learning rates grow
_MULTIPLES = (2, 4, 8)
# A loader of the training gives its batches while gradients are recorded; fewer than so many of the larger batches
# an epoch would make another training of it altogether.
_FEWEST_BATCHES = 4


class BatchSize(Technique):
    """Trains on larger batches: fewer and larger steps over the same samples.

    What it does: the training's DataLoaders make batches of 2, 4 or 8 times as many samples, in the sampler's
    own order, an epoch still seeing each sample once. Learning rates are kept, or grow with the batch or its
    square root where that is asked for. Only ever tried when named: it changes the training itself.

    When it helps: where a step is too small to fill the device: the samples per second grow with the batch up to
    a knee, which the duels at 2, 4 and 8 times show, and then no more, while memory goes on growing: the smallest
    batch that is as fast as the fastest, within its interval, is taken. Fewer
    steps reach the same loss as long as the batch stays below the gradient's noise scale, which a tune estimates.

    When it hurts: beyond the noise scale every further sample of a batch is as good as wasted, and the loss after an
    epoch is higher. Schedules that count steps (warm-up, decay by step, a number of steps worked out from
    `len(loader)` before the first epoch) no longer fit. Batch normalisation sees other statistics. Loaders
    with a batch sampler of their own, and those opened under `no_grad`, are left alone.

    What it watches: each loader when it is opened. As another training is asked for, nothing is proved; what would
    escape: all that counts steps or batches.

    Contract: open. Another number of steps, other gradients, another result.

    Source: McCandlish et al., An Empirical Model of Large-Batch Training, https://arxiv.org/abs/1812.06162;
    for the learning rate Goyal et al., https://arxiv.org/abs/1706.02677, and Malladi et al.,
    https://arxiv.org/abs/2205.10287.
    """

    name = "batch_size"
    contract = Contract.OPEN
    targets = ("data", "forward", "backward", "optimizer", "other")
    compare_all = True  # for the knee to be seen
    order = 20  # outermost of those who open a loader: they see the batches as they will be
    survives = True
    knobs = (
        Knob("times", 2, "how many times as many samples in a batch", low=2, high=1024),
        Knob("learning_rate", "kept", "how learning rates grow with the batch", choices=tuple(_GROWTH)),
    )

    def applies(self, facts: Facts) -> str | None:
        if not any(loader.map_style and loader.batch_size for loader in facts.loaders):
            return "the program has no map-style DataLoader whose batches could be larger"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        lengths = [loader.length / loader.batch_size for loader in facts.loaders if loader.length and loader.batch_size]
        batches = max(lengths, default=float("inf"))
        return [{"times": times} for times in _MULTIPLES if batches >= _FEWEST_BATCHES * times]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        times = int(settings["times"])
        larger = _Larger(times)

        def open_larger(loader: Any, call: Callable[[], Any]) -> Any:
            reason = larger.take(loader)
            if reason and not larger.before:
                seams.leave_out(self.name, reason)
            return call()

        seams.loader_opens.subscribe(open_larger)
        seams.on_undo(larger.give_back)
        if settings["learning_rate"] != "kept":
            rates = _Rates(times ** _GROWTH[str(settings["learning_rate"])])
            seams.optimizer_made.subscribe(rates.grow)
            seams.on_undo(rates.shrink)
        return seams.handle()


class _Larger:
    """The loaders whose batches were made larger in one session, and what they were before."""

    def __init__(self, times: int) -> None:
        self.before: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._times = times

    def take(self, loader: Any) -> str | None:
        """Make its batches larger; or the reason why not. One that was seen before, or evaluates, stays as it is."""
        import torch
        from torch.utils.data import BatchSampler

        from overdrive.seams.torch.iterators import change

        if loader in self.before or not torch.is_grad_enabled():
            return None
        batches = loader.batch_sampler
        if type(batches) is not BatchSampler:
            return "the batches are put together by the program's own batch sampler, or by none"
        size = batches.batch_size * self._times
        try:
            if len(batches.sampler) < size:  # type: ignore[arg-type]
                return f"the data set is smaller than a batch of {size}"
        except TypeError:
            pass  # a sampler that does not know its length
        larger = BatchSampler(batches.sampler, size, batches.drop_last)
        self.before[loader] = change(loader, {"batch_sampler": larger, "batch_size": size})
        return None

    def give_back(self) -> None:
        """As they were, from the next epoch on."""
        from overdrive.seams.torch.iterators import change

        for loader, attributes in list(self.before.items()):
            change(loader, attributes)
        self.before.clear()


class _Rates:
    """Learning rates that were made larger as soon as their optimizer was there, before any schedule saw them."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._optimizers: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def grow(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers[optimizer] = True
        self._multiply(optimizer, self._factor)

    def shrink(self) -> None:
        for optimizer in list(self._optimizers):
            self._multiply(optimizer, 1 / self._factor)

    def _multiply(self, optimizer: Any, factor: float) -> None:
        for group in optimizer.param_groups:
            for name in ("lr", "initial_lr"):  # a schedule keeps its own start there
                if name in group:
                    group[name] = group[name] * factor
