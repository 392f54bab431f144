"""Seams *batch awaited* and *batch fetched*: a `DataLoader` is iterated over, and each batch that comes out of it."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches

# Set on torch's iterators that a technique reads from on the program's behalf, perhaps ahead of it.
_BEHIND = "overdrive_behind"


def live_loaders() -> list[Any]:
    """The loaders that this process has made and not let go of."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), DataLoader)]


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.loader_made.wanted:
        patches.replace(DataLoader, "__init__", _making(hub))
    if hub.loader_opens.wanted:
        open_loader = DataLoader.__iter__

        @functools.wraps(open_loader)
        def __iter__(self: Any) -> Any:
            def call() -> Any:
                iterator = open_loader(self)
                with contextlib.suppress(AttributeError):  # a generator, of a loader of the program's own
                    setattr(iterator, _BEHIND, True)  # until it is known who reads from it
                return iterator

            handed = hub.loader_opens.run(self, call)
            if isinstance(handed, _BaseDataLoaderIter):
                handed.__dict__.pop(_BEHIND, None)
                return handed
            watched = hub.batch_fetched.subscribers or hub.batch_awaited.subscribers
            return _Handed(hub, handed, self) if watched else handed

        patches.replace(DataLoader, "__iter__", __iter__)
    if hub.batch_fetched.wanted or hub.batch_awaited.wanted:
        fetch = _BaseDataLoaderIter.__next__
        awaited, fetched = hub.batch_awaited, hub.batch_fetched

        @functools.wraps(fetch)
        def __next__(self: Any) -> Any:
            if _BEHIND in self.__dict__:
                return fetch(self)
            began = time.perf_counter()
            batch = awaited.run(self, fetch, self) if awaited.subscribers else fetch(self)
            fetched.publish(self, batch, time.perf_counter() - began)
            return batch

        patches.replace(_BaseDataLoaderIter, "__next__", __next__)
    return []


def _making(hub: Seams) -> Callable[..., None]:
    make = DataLoader.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            arguments = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # the program's own error
            return make(self, *args, **kwargs)
        given = {name: value for name, value in arguments.items() if name != "self"}
        return make(self, **hub.loader_made.apply((self, given))[1])

    return __init__


class _Handed:
    """An iterator that is not torch's: what the program takes from it counts, not what it reads ahead."""

    def __init__(self, hub: Seams, batches: Any, loader: Any) -> None:
        self._hub = hub
        self._batches = iter(batches)
        self._dataset = loader.dataset  # as torch's iterators name them
        self._num_workers = loader.num_workers
        self._index_sampler = getattr(loader, "_index_sampler", None)
        self._auto_collation = getattr(loader, "_auto_collation", True)

    def __iter__(self) -> _Handed:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        batch = self._hub.batch_awaited.run(self, next, self._batches)
        self._hub.batch_fetched.publish(self, batch, time.perf_counter() - began)
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
