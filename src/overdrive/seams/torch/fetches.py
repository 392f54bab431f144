"""Seam *samples fetched*, and whether a data set is at work in this thread: its transforms are often modules, and no
models of the program's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.points import Around
from overdrive.seams.torch.fetchers import in_worker


class _Thread(threading.local):
    depth = 0
    number = 0  # of the fetch that is under way, or was last
    indices: Any = None  # that it is of


_thread = _Thread()


def under_way() -> bool:
    """Whether samples are being fetched or collated here. A loader's worker does nothing else."""
    return _thread.depth > 0 or in_worker()


def calls_plain_leaf(module: Any) -> bool:
    """Whether samples are being fetched here and this module has no parameters, and no modules that may have some.

    In one function, though others tell its parts: it is asked once for each sample.
    """
    return (_thread.depth > 0 or in_worker()) and not (module._parameters or module._modules)


def current() -> tuple[int, Any] | None:
    """Which fetch is under way in this thread, and of which indices; None where there is none."""
    return (_thread.number, _thread.indices) if _thread.depth else None


@contextmanager
def noted() -> Iterator[None]:
    """What is called inside belongs to a fetch."""
    _begin(None)
    try:
        yield
    finally:
        _thread.depth -= 1


def _begin(indices: Any) -> None:
    if not _thread.depth:
        _thread.number, _thread.indices = _thread.number + 1, indices
    _thread.depth += 1


def enter(hub: Seams, patches: Patches) -> None:
    """Note what PyTorch's own fetchers do, whoever has them fetch."""
    for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
        patches.replace(kind, "fetch", _noting(hub.samples_fetched, kind.fetch))


def _noting(point: Around, fetch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fetch)
    def noting(self: Any, possibly_batched_index: Any) -> Any:
        asks = point.subscribers and not _thread.depth  # not of a fetch within another one
        _begin(possibly_batched_index)  # `noted` takes 1 us more
        try:
            if asks:
                call = functools.partial(fetch, self, possibly_batched_index)
                return point.run((self, possibly_batched_index), call)
            return fetch(self, possibly_batched_index)
        finally:
            _thread.depth -= 1

    return noting


def samples_of(fetcher: Any) -> Any:
    """The data set that a fetcher takes its samples from by their numbers; None of a stream."""
    return fetcher.dataset if isinstance(fetcher, _MapDatasetFetcher) else None
