"""Technique `sample_cache`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.samples.keeper import Keeper
    from overdrive.seams.hub import Seams

_LEAST_SHARE = 0.02


class SampleCache(Technique):
    """Decodes each sample once, and gathers batches from the stacked samples from then on.

    What it does: takes the samples of a map-style data set as the program fetches them, keeps them stacked
    in a file that is mapped into memory, and serves later batches from there, in the sampler's own order.
    The file outlives the process: the next run of the same program on the same files starts with it. It
    lies in `$OVERDRIVE_CACHE`, else in `overdrive/samples` in the user's cache folder, and takes at most a
    fifth of the free disk.

    When it helps: where decoding and transforming samples takes more time than copying them: images, audio,
    anything parsed. Workers are not needed then, and their cores are free for the training.

    When it hurts: where the stacked samples don't fit the memory (then it refuses), or where samples are
    cheap already. A first run spends time on writing them down.

    Contract: exact. A data set is tried in a forked process before: its samples must come out the same in
    every bit under other random states, leave it and all random generators as they were, and be just
    stacked into batches. Random augmentation is found out by that and refused. The stored samples are
    known by a hash of the data set's attributes, code, files and library versions; a data set that changes
    is fetched anew. All draws of samplers and loaders happen as before. A data file that is changed on disk
    while the program runs is noticed by the next run only.

    Source: the idea is that of TensorFlow's `Dataset.cache`, https://www.tensorflow.org/guide/data_performance;
    for the cost of fetching in Python see https://docs.ffcv.io/.
    """

    name = "sample_cache"
    family = "data"
    contract = Contract.EXACT
    relieves = ("data",)
    order = 10
    knobs = (Knob("memory_share", 0.5, "share of the available memory that samples may take", low=0.05, high=0.9),)

    def __init__(self) -> None:
        self.keeper: Keeper | None = None  # of the session that came last

    @property
    def reasons(self) -> list[str]:
        """Why loaders were refused."""
        return self.keeper.reasons if self.keeper else []

    @property
    def fill_seconds(self) -> float:
        """Time spent on filling tables before the first batch."""
        return self.keeper.fill_seconds if self.keeper else 0.0

    def applies(self, facts: Facts) -> str | None:
        if not any(loader.map_style for loader in facts.loaders):
            return "the program has no map-style DataLoader"
        if facts.share("data") < _LEAST_SHARE:
            return f"waiting for data is {facts.share('data'):.0%} of a step"
        return None

    def install(self, seams: Seams, settings: Settings) -> None:
        self.keeper = None

        def opens(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.samples.keeper import Keeper, fills_at_once
            from overdrive.samples.serve import serve

            first = self.keeper is None
            self.keeper = keeper = self.keeper or Keeper(float(settings["memory_share"]), fills_at_once())
            kept = keeper.kept_for(loader)
            if first and (kept is None or fills_at_once()):
                keeper.keep_others()
            if kept is not None:
                return serve(kept, loader, call)
            if not keeper.useful:
                seams.leave_out(self.name, keeper.reasons[0])
            return call()

        def close() -> None:
            if self.keeper is not None:
                self.keeper.close()

        seams.loader_opens.subscribe(opens)
        seams.on_undo(close)
