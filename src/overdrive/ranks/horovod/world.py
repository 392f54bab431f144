"""Who this process is, in Horovod's words, from `init` to `shutdown`."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from overdrive.ranks.horovod.coordinator import Coordinator
from overdrive.ranks.horovod.wire import Wire, host
from overdrive.ranks.rank import current

__all__ = [
    "ProcessSet",
    *("add_process_set", "remove_process_set", "start_timeline", "stop_timeline"),
    *("cross_rank", "cross_size", "global_process_set", "init", "is_homogeneous", "is_initialized", "local_rank"),
    *("local_size", "rank", "shutdown", "size"),
    *("ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled"),
    *("mpi_threads_supported", "nccl_built", "rocm_built"),
]


class World:
    """
    Attributes:
        hosts: of each rank, where it runs.
    """

    def __init__(self) -> None:
        found = current()
        if found:
            found.leave_to_program("it is written for Horovod")
        wire = Wire(found.group if found else None)
        self.rank, self.size = wire.rank, wire.size
        self.hosts: list[str] = wire.exchange(host())
        self.coordinator = Coordinator(wire)

    def local(self, rank: int) -> tuple[int, int]:
        """Its number among those of its host, and how many these are."""
        here = [each for each, place in enumerate(self.hosts) if place == self.hosts[rank]]
        return here.index(rank), len(here)

    def cross(self, rank: int) -> tuple[int, int]:
        """Its host's number among those with a rank of the same local number, and how many these are."""
        local = self.local(rank)[0]
        alike = [each for each in range(self.size) if self.local(each)[0] == local]
        return alike.index(rank), len(alike)


class ProcessSet:
    """All ranks: a part of them is not supported."""

    process_set_id = 0

    def __init__(self, *ranks: Any) -> None:
        if ranks:
            raise NotImplementedError("Overdrive's Horovod interface has no process sets but that of all ranks.")

    def rank(self) -> int:
        return rank()

    def size(self) -> int:
        return size()

    def included(self) -> bool:
        return True


def add_process_set(process_set: Any) -> ProcessSet:
    return ProcessSet(process_set)


def remove_process_set(process_set: Any) -> bool:
    """That of all ranks stays."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    warnings.warn("Overdrive writes no timeline of Horovod's", stacklevel=2)


def stop_timeline() -> None: ...


global_process_set = ProcessSet()
_world: list[World] = []


def world() -> World:
    """
    Raises:
        ValueError: `init` was not called.
    """
    if not _world:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world[0]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Of this process, or of all ranks of the run: the program brings its own parallelism from here on.

    Raises:
        NotImplementedError: for a part of the ranks.
    """
    if comm or process_sets:
        raise NotImplementedError("Overdrive's Horovod interface is for all ranks: call hvd.init() without arguments.")
    if not _world:
        _world.append(World())


def shutdown() -> None:
    if _world:
        _world.pop().coordinator.stop()


def is_initialized() -> bool:
    return bool(_world)


def rank() -> int:
    return world().rank


def size() -> int:
    return world().size


def local_rank() -> int:
    return world().local(rank())[0]


def local_size() -> int:
    return world().local(rank())[1]


def cross_rank() -> int:
    return world().cross(rank())[0]


def cross_size() -> int:
    return world().cross(rank())[1]


def is_homogeneous() -> bool:
    """Whether all hosts have as many ranks."""
    found = world()
    return len({found.hosts.count(each) for each in found.hosts}) == 1


def nccl_built() -> int:
    """Of what would carry tensors of GPUs; a version in Horovod, where 0 is none."""
    available = torch.distributed.is_nccl_available()
    if not available or not torch.cuda.is_available():
        return 0
    major, minor, *_ = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return int(major) * 1000 + int(minor) * 100


def cuda_built() -> bool:
    return torch.version.cuda is not None


def rocm_built() -> bool:
    return torch.version.hip is not None


def gloo_built() -> bool:
    return True


def gloo_enabled() -> bool:
    return True


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    return False


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False
