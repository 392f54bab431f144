"""Technique `loader_workers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique, Value

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

# Starting workers takes tens of milliseconds; an epoch of fewer batches does not earn that back.
_FEWEST_BATCHES = 8


class LoaderWorkers(Technique):
    """Fetches batches in worker processes, ahead of the training loop.

    What it does: sets the number of workers, how many batches each keeps ready, and whether the workers
    live on from epoch to epoch, for every map-style `DataLoader` of the program.

    When it helps: where the loop waits for data and cores (or a GPU's idle host) are free to make it.

    When it hurts: where the training itself needs all cores: on 2 cores, 2 workers gave 0.8 to 1.1 times
    the speed of none. Small data sets lose more by starting workers than they gain.

    Contract: exact for data sets that draw no random numbers; where they do, each worker draws from a
    stream of its own, and the level falls to statistical. Sampler order is untouched. Iterable data sets
    are left alone, because workers would repeat their samples.

    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    name = "loader_workers"
    family = "data"
    contract = Contract.EXACT
    falls_to = Contract.STATISTICAL
    relieves = ("data",)
    order = 12
    knobs = (
        Knob("workers", 2, "processes that fetch batches; 0 fetches in the loop itself", low=0, high=128),
        Knob("prefetch", 2, "batches that each worker keeps ready", low=1, high=64),
        Knob("persistent", True, "workers live on from epoch to epoch"),
    )

    def applies(self, facts: Facts) -> str | None:
        if not any(loader.map_style for loader in facts.loaders):
            return "the program has no map-style DataLoader"
        if facts.share("data") < 0.05:
            return f"waiting for data is only {facts.share('data'):.0%} of a step"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        now = max((loader.workers for loader in facts.loaders), default=0)
        counts = [count for count in dict.fromkeys((facts.cores, facts.cores // 2, 1)) if 0 < count != now]
        tries: list[dict[str, Value]] = [{**self.defaults(), "workers": count} for count in counts]
        if now:
            tries.append({**self.defaults(), "workers": now})  # the same number, but persistent
        return tries[:3]

    def install(self, seams: Seams, settings: Settings) -> None:
        changed: dict[int, tuple[Any, dict[str, Any]]] = {}

        def open_with_workers(loader: Any, call: Callable[[], Any]) -> Any:
            if id(loader) not in changed and _suits(loader):
                changed[id(loader)] = (loader, _change(loader, settings))
            return call()

        def undo() -> None:
            for loader, before in changed.values():
                loader._iterator = None
                loader.__dict__.update(before)
            changed.clear()

        seams.loader_opens.subscribe(open_with_workers)
        seams.on_undo(undo)


def _suits(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return False
    try:
        return len(loader) >= _FEWEST_BATCHES
    except TypeError:
        return False


def _change(loader: Any, settings: Settings) -> dict[str, Any]:
    """Set the loader's attributes; returns what they were. (DataLoader guards them against assignment.)"""
    names = ("num_workers", "prefetch_factor", "persistent_workers")
    before = {name: loader.__dict__[name] for name in names}
    workers = settings["workers"]
    loader.__dict__.update(
        num_workers=workers,
        prefetch_factor=settings["prefetch"] if workers else None,
        persistent_workers=bool(workers and settings["persistent"]),
    )
    return before
