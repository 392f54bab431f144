"""Tells which samples `sample_cache` has kept on disk, for `overdrive pack`. Runs inside a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overdrive.datacache.cached_dataset import CachedDataset
    from overdrive.seams.hub import Seams


def make_observer() -> CachedSamples:
    return CachedSamples()


class CachedSamples:
    """An observer; reports what `sample_cache` keeps when it is asked."""

    def __call__(self, seams: Seams) -> None:
        self._seams = seams

    def report(self) -> dict[str, Any]:
        from overdrive.datacache.manager import shared  # imports torch

        manager = shared(self._seams, 0.5)  # sample_cache's own, where a loader has been opened
        return {"kept": [_told(kept) for kept in manager.kept], "refused": manager.reasons}


def _told(kept: CachedDataset) -> dict[str, Any]:
    from overdrive.datacache.codes import bytes_as_codes  # imports numpy

    missing, sizes = kept.table.missing, (kept.table.layout, kept.table.count)
    reason = kept.dropped or (f"{missing:,} of its samples could not be fetched" if missing else "")
    return {
        "data_set": type(kept.source.dataset).__name__,
        "samples": kept.table.count,
        "bytes": bytes_as_codes(*sizes, kept.table.coded) if kept.table.coded else kept.source.bytes_of_all(sizes[0]),
        "key": kept.key,
        "reason": reason,
    }
