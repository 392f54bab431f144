"""Fetches as a loader does, in a forked process that leaves the program as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from overdrive.core.whose import is_library
from overdrive.forks.forked import Tick, in_children
from overdrive.forks.layout import Unfit
from overdrive.seams.batches import leaves
from overdrive.seams.torch.fetchers import become_worker
from overdrive.seams.torch.iterators import parts_of

_PATIENCE = 20.0  # longer than any one item may take
_NO_DATA = ("/dev/shm/", "/memfd:", "/proc/")


class Served(Unfit):
    """A loader's batches come from what a technique keeps."""

    def __init__(self) -> None:
        super().__init__("its batches do not come straight from its data set")


@dataclass(frozen=True)
class Fetching:
    """All that is needed to fetch as a loader does."""

    dataset: Any
    collate: Any
    sampler: Any  # gives the indices of a batch at a time
    workers: int
    prepare_worker: Any

    @classmethod
    def by_loader(cls, loader: Any) -> Fetching:
        """
        Raises:
            Unfit: it fetches in a way of its own.
        """
        from torch.utils.data import IterableDataset

        if isinstance(loader.dataset, IterableDataset):
            raise Unfit("its data set is a stream")
        if loader.batch_sampler is None:
            raise Unfit("it makes no batches (batch_size is None)")
        prepare = loader.worker_init_fn if loader.num_workers else None
        return cls(loader.dataset, loader.collate_fn, loader.batch_sampler, int(loader.num_workers), prepare)

    @classmethod
    def by_iterator(cls, iterator: Any) -> Fetching:
        """
        Raises:
            Unfit: it fetches in a way of its own.
            Served: a technique fetches for it.
        """
        parts = parts_of(iterator)
        if parts is None:
            raise Served
        if parts.stream:
            raise Unfit("its data set is a stream")
        if not parts.batches:
            raise Unfit("it makes no batches (batch_size is None)")
        return cls(parts.dataset, parts.collate, parts.sampler, parts.workers, parts.prepare_worker)

    def items(self, indices: list[Any]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        return list(together(indices)) if together else [self.dataset[index] for index in indices]

    def enter_worker(self) -> None:
        """Make this forked process what the loader's first worker would be. Nothing where it has none."""
        if self.workers:
            become_worker(self.dataset, 0, self.workers, self.prepare_worker)


def batch_bytes(fetching: Fetching) -> int:
    """The bytes of a batch's tensors, from one that is fetched apart.

    Raises:
        Unfit: it cannot be found out without harm; with the reason.
    """

    def fetch(tick: Tick) -> int:
        fetching.enter_worker()
        for indices in fetching.sampler:
            return bytes_in(fetching.collate(fetching.items(list(indices))))
        raise Unfit("it has no batch")

    return int(apart(fetching, fetch, None))


def bytes_in(batch: Any) -> int:
    """Bytes of all tensors of a batch that lie in the main memory."""
    import torch

    from overdrive.seams.torch.layouts import bytes_of

    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    return sum(bytes_of(tensor) for tensor in tensors if tensor.device.type == "cpu")


def apart(fetching: Fetching, work: Callable[[Tick], Any], on_tick: Tick | None) -> Any:
    """What `work` gives in a forked process, as plain data.

    Raises:
        Unfit: it cannot be done without harm, or failed; with the reason.
    """
    places = _places_in_files(fetching.workers > 0)
    try:
        return in_children([work], on_tick, _PATIENCE)[0]
    finally:
        for number, place in places.items():  # a forked process reads on from the same place, and moves it
            os.lseek(number, place, os.SEEK_SET)


def _places_in_files(workers: bool) -> dict[int, int]:
    """Where this process is in each data file that it has open, by the file's number.

    Raises:
        Unfit: it is connected to a server, which would take the forked process for this one; or there are
            workers, and a file that they may be reading at this moment, from the same place.
    """
    places = {}
    if not os.path.isdir("/proc/self/fd"):
        raise Unfit("this system does not tell which files are open")
    for number, path, mode in _open_files():
        if stat.S_ISSOCK(mode) and _connected(number):
            raise Unfit("the program is connected to a server")
        if stat.S_ISREG(mode) and not path.startswith(_NO_DATA) and not is_library(path):
            with contextlib.suppress(OSError):
                access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
                if access != os.O_WRONLY:
                    places[number] = os.lseek(number, 0, os.SEEK_CUR)
                if workers and access == os.O_RDONLY:
                    raise Unfit(f"a file is open, which its workers may be reading: {path}")
    return places


def standing_files() -> list[str]:
    """The data files that this process has open: an archive, say."""
    regular = {path for _, path, mode in _open_files() if stat.S_ISREG(mode)}
    return sorted(
        path for path in regular if not path.startswith(_NO_DATA) and not is_library(path) and os.path.isfile(path)
    )


def _open_files() -> Iterator[tuple[int, str, int]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}"), os.fstat(int(name)).st_mode


def _connected(number: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            return connection.family in (socket.AF_INET, socket.AF_INET6) and bool(connection.getpeername())
    except OSError:
        return False
