"""Tells which samples `sample_cache` has kept on disk, for `overdrive pack`. Runs inside a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.datacache.cached_dataset import CachedDataset
    from overdrive.seams.hub import Handle, Seams


class SamplesKept(Technique):
    """Writes down what `sample_cache` keeps, when the first training step has been made.

    No technique to be chosen: it is in no catalogue but that of the one trial that `overdrive pack` runs.
    """

    name = "samples_kept"
    family = "data"
    contract = Contract.EXACT
    targets = ()
    order = 90
    knobs = (Knob("report", "", "the file to write"),)

    def install(self, seams: Seams, settings: Settings) -> Handle:
        written: list[bool] = []

        def stepped(_optimizer: Any) -> None:
            if not written:
                written.append(True)
                Path(str(settings["report"])).write_text(json.dumps(_report(seams)))

        seams.step_ends.subscribe(stepped)
        return seams.handle()


def _report(seams: Seams) -> dict[str, Any]:
    from overdrive.datacache.manager import shared

    manager = shared(seams, 0.5)  # sample_cache's own, where a loader has been opened
    return {"kept": [_told(kept) for kept in manager.kept], "refused": manager.reasons}


def _told(kept: CachedDataset) -> dict[str, Any]:
    missing = kept.table.missing
    reason = kept.dropped or (f"{missing:,} of its samples could not be fetched" if missing else "")
    return {
        "data_set": type(kept.source.dataset).__name__,
        "samples": kept.table.count,
        "bytes": kept.source.bytes_of_all(kept.table.layout),
        "key": kept.key,
        "reason": reason,
    }
