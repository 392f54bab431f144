"""A GPU of no hardware: tensors that live there are told by their memory, say `cuda:0`, and compute on the CPU.

What a GPU forbids or leaves undone, it forbids or leaves undone. Memory of the host and of the device do not meet in an
operation. Work belongs to streams, and what nothing keeps in order is a race (`races`). Whatever needs a value on the
host waits for the device, which can be noted or refused, and ends a recording; what is recorded is not carried out, and
is replayed by the operations alone (`capture`). Copies from pageable memory hold up the host, those from pinned memory
do not. Memory runs out. Random numbers are drawn by a generator of the device's own.

It computes at once, on the CPU: no result is late, it only says where one could be. It knows no kernels, no numerical
differences between them, and no time.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from overdrive.core.flag import FlagOfThread
from overdrive.seams.torch.internals import storage_owners
from tests.fakes.capture import Tape
from tests.fakes.races import HOST, Order

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
DEFAULT = "stream 0"
_ACROSS = {aten.copy_.default, aten.set_.source_Tensor, aten.lift_fresh.default}
_LENGTHS = {aten._pack_padded_sequence.default}
_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_UNTOLD = ("running_mean", "running_var")  # batch normalisation writes to them, and its schema does not say so
uncounted = FlagOfThread()  # what is done now is not counted
CAPTURING = "CUDA error: operation not permitted when stream is capturing"


class FakeGpu(TorchDispatchMode):
    """While it is entered, there is this GPU, for tensors that were sent to it."""

    def __init__(self, memory: int = 1 << 40) -> None:
        super().__init__()
        self.order = Order()
        self.memory = memory
        self.allocated = self.peak = self.held = self.peak_held = 0  # bytes; held: by the allocator, in use or not
        self.busy = False  # another process has it, in exclusive-process mode
        self.sync_debug = "default"
        self.synced: list[str] = []  # what has waited for the device so far
        self.tape: Tape | None = None
        self.captures = self.replays = 0
        self.fails = False  # recordings, whatever they record
        self.kinds: Counter[str] = Counter()  # operations, by name ...
        self.launches = self.copies = 0  # ... those that are work of the device's, and copies to and from the host
        self.generator = torch.Generator().manual_seed(0).get_state()
        self.generator_broken = False
        self.pools: dict[Any, int] = {}  # bytes that graphs hold, whether a tensor uses them or not
        self._pooled: dict[int, Any] = {}
        self.broken_pools: set[Any] = set()  # to which a recording began that failed: none begins there again
        self._thread = threading.local()
        self._there: dict[int, tuple[StorageWeakRef, int]] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._copied: dict[int, StorageWeakRef] = {}  # memory of the host's that copies came to

    # -- where things are -------------------------------------------------------------------------

    def has(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        found = self._there.get(tensor.untyped_storage()._cdata)
        return found is not None and not found[0].expired()

    def pinned(self, tensor: torch.Tensor) -> bool:
        found = self._pinned.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)
        self.order.made(storage._cdata, HOST)
        return tensor

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Have it live here from now on.

        Raises:
            torch.OutOfMemoryError: there is no room.
        """
        self.sweep()
        storage = tensor.untyped_storage()
        if storage._cdata in self._there:
            return tensor
        if self.busy:
            raise torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
        size = storage.nbytes()
        if self.allocated + sum(self.pools.values()) + size > self.memory:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self.allocated += size
        self._note()
        self._there[storage._cdata] = StorageWeakRef(storage), size
        self.order.made(storage._cdata, self.stream)
        return tensor

    def _note(self) -> None:
        self.peak = max(self.peak, self.allocated)
        in_pools = sum(self._there[key][1] for key in self._pooled if key in self._there)
        self.held = max(self.held, self.allocated - in_pools)
        self.peak_held = max(self.peak_held, self.held + sum(self.pools.values()))

    def reset_peaks(self, *_: Any) -> None:
        self.sweep()
        self.peak, self.peak_held = self.allocated, self.held + sum(self.pools.values())

    def sweep(self) -> None:
        """Memory that nobody holds any more goes back to the allocator."""
        for key, storage in list(self._pooled.items()):
            if storage_owners(storage) == 1:  # the graph's: no tensor has it any more
                del self._pooled[key]
                self.allocated -= self._there[key][1]
                self._there[key] = self._there[key][0], 0
        # In lists, which are made at once: a thread that copies batches comes by here, too.
        gone = [key for key, (mark, _) in list(self._there.items()) if mark.expired()]
        for key in gone:
            if place := self._there.pop(key, None):
                self.allocated -= place[1]
                self.order.freed(key)
        for key in [key for key, mark in list(self._pinned.items()) if mark.expired()]:
            self._pinned.pop(key, None)

    # -- streams and waiting ----------------------------------------------------------------------

    @property
    def stream(self) -> str:
        return getattr(self._thread, "stream", DEFAULT)

    @stream.setter
    def stream(self, name: str) -> None:
        self._thread.stream = name

    def host_waits(self, what: str, stream: str | None = None, noted: bool = True) -> None:
        """The host needs something of this stream."""
        self.not_while_capturing()
        self.order.waits(HOST, self.order.at(stream or self.stream))
        if noted and not uncounted:
            self.synced.append(what)
            if self.sync_debug == "error":
                raise RuntimeError(f"called a synchronizing CUDA operation ({what})")
            if self.sync_debug == "warn":
                warnings.warn(f"called a synchronizing CUDA operation ({what})", stacklevel=2)

    def not_while_capturing(self) -> None:
        if self.tape is not None:
            self.tape.broken = self.tape.broken or CAPTURING
            raise torch.AcceleratorError(CAPTURING)

    # -- operations -------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        there = [each for each in tensors if self.has(each)]
        if not there:
            return self._on_host(func, args, kwargs, tensors)
        if func is aten.copy_.default and not (self.has(args[0]) and self.has(args[1])):
            return self.copy(args[0], args[1], bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False))
        if func not in _ACROSS:
            self._refuse(func, args, tensors)
        return self._on_device(func, args, kwargs, there)

    def _on_host(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        self._count(f"{func} on the host")
        watched = {each.untyped_storage()._cdata for each in tensors if _plain(each) and self.pinned(each)}
        if watched:
            written = {each.untyped_storage()._cdata for each in _written(func, args, kwargs)} & watched
            self.order.touch(HOST, watched - written, written, str(func))
        return func(*args, **kwargs)

    def _on_device(self, func: Any, args: Any, kwargs: Any, there: list[torch.Tensor]) -> Any:
        self._count(str(func))
        written = [each for each in _written(func, args, kwargs) if _plain(each)]
        writes = {each.untyped_storage()._cdata for each in written}
        reads = {each.untyped_storage()._cdata for each in there}
        waits = bool(_WAITS & set(func.tags)) and not _indices_only(func, args)
        random = torch.Tag.nondeterministic_seeded in func.tags or "dropout" in str(func)
        if waits:
            self.not_while_capturing()
        if self.tape is not None:
            if self.stream != self.tape.stream:
                self.tape.broken = "work on another stream, which is not captured"
                raise torch.AcceleratorError("CUDA error: operation would make the legacy stream depend on a capture")
            for each in written:
                self.tape.save(each)
            self.tape.reads |= reads
            self.tape.writes |= writes
        elif not _is_view(func) and not _allocates(func):
            self.launches += not uncounted
            self.order.touch(self.stream, reads - writes, writes, str(func))
        if random:
            with self.drawing():
                result = func(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        made = [each for each in tree_leaves(result) if _plain(each)]
        for each in made:
            self.place(each)
        fresh = {each.untyped_storage()._cdata for each in made} - reads
        if fresh and not _allocates(func):
            self.wrote(fresh, str(func))
        if self.tape is not None:
            self._taped(func, args, kwargs, result, random)
        if waits:
            self.host_waits(str(func))
        return result

    def _count(self, kind: str) -> None:
        if not uncounted:
            self.kinds[kind] += 1

    def wrote(self, made: set[int], what: str) -> None:
        """Fresh memory got its first values, by work of this stream."""
        if self.tape is None:
            self.order.touch(self.stream, set(), made, what)

    def _taped(self, func: Any, args: Any, kwargs: Any, result: Any, random: bool) -> None:
        assert self.tape is not None
        if _allocates(func):
            self.tape.made(result)
        else:
            self.tape.add(func, args, kwargs, tree_leaves(result), random)

    def copy(self, into: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        """Between host and device, as `copy_` does it."""
        self.copies += not uncounted
        host = source if self.has(into) else into
        pageable = not self.pinned(host) and not (self.has(into) and source.dim() == 0 and source.numel() == 1)
        if pageable or not non_blocking:
            self.not_while_capturing()
        if self.tape is None:
            self._anew(host.untyped_storage())
            self.order.touch(self.stream, {source.untyped_storage()._cdata}, {into.untyped_storage()._cdata}, "a copy")
        with _disable_current_modes(), torch.no_grad():
            if self.tape is not None:
                self.tape.save(into)
                self.tape.add(aten.copy_.default, (into, source), {}, [], False)
            aten.copy_.default(into, source)
        if not non_blocking:
            self.host_waits("a copy that blocks")
        elif pageable and self.has(source):
            self.host_waits("a copy into pageable memory", noted=False)
        elif pageable:  # staged: the host's memory is free again
            self.order.made(source.untyped_storage()._cdata, HOST)
        return into

    def _anew(self, storage: torch.UntypedStorage) -> None:
        """Memory of the host's that has the address of another, which is gone, is not that."""
        known = self._copied.get(storage._cdata)
        if known is None or known.expired():
            self._copied[storage._cdata] = StorageWeakRef(storage)
            self.order.made(storage._cdata, HOST)

    def _refuse(self, func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
        if func in _LENGTHS:
            if self.has(args[1]):
                raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
            return
        scalars = torch.Tag.pointwise in func.tags or "_foreach" in str(func) or "fused" in str(func)
        for each in tensors:
            if not self.has(each) and not (scalars and each.dim() == 0):
                shapes = ", ".join(f"{tuple(one.shape)} {'there' if self.has(one) else 'here'}" for one in tensors)
                raise RuntimeError(f"Expected all tensors to be on the same device, in {func}: {shapes}")

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Random numbers come from the device's generator, and the host's is left alone."""
        if self.generator_broken:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        with _disable_current_modes():
            host = torch.get_rng_state()
            torch.set_rng_state(self.generator)
            try:
                yield
            finally:
                if self.tape is None:
                    self.generator = torch.get_rng_state()
                torch.set_rng_state(host)

    # -- graphs -----------------------------------------------------------------------------------

    def begin_capture(self, pool: Any) -> Tape:
        if self.stream == DEFAULT:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if self.fails:
            raise torch.AcceleratorError(CAPTURING)
        if pool in self.broken_pools:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.tape = Tape(self.stream, pool)
        return self.tape

    def end_capture(self) -> None:
        tape, self.tape = self.tape, None
        assert tape is not None
        with _disable_current_modes(), torch.no_grad():
            tape.end()
        if tape.broken:
            self.generator_broken = True
            self.broken_pools.add(tape.pool)
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
        self.captures += 1
        for key in tape.storages():
            self.order.made(key, HOST)  # the graph's, until CUDA takes it back, which waits for all streams
        self._pooled |= tape.storages()
        self.pools[tape.pool] = self.pools.get(tape.pool, 0) + sum(each.nbytes() for each in tape.storages().values())
        self.held -= min(self.held, sum(each.nbytes() for each in tape.storages().values()))
        self._note()

    def replay(self, tape: Tape) -> None:
        self.not_while_capturing()
        self.replays += 1
        writes = tape.writes | tape.storages().keys()
        self.order.touch(self.stream, tape.reads - writes, writes, "a replay")
        with _disable_current_modes(), torch.enable_grad():  # oneDNN keeps what a backward pass needs only then
            tape.play(self.drawing)


def _plain(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.layout is torch.strided


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors among the arguments that it writes to."""
    found: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes or (argument.name in _UNTOLD and "backward" not in str(func)):
            found += [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    return found


def _is_view(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _allocates(func: Any) -> bool:
    return str(func).startswith(("aten.empty", "aten.new_empty"))


def _indices_only(func: Any, args: Any) -> bool:
    """An index by numbers has a shape that is known; only one by truth values must be counted."""
    if func is not aten.index.Tensor:
        return False
    return all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in args[1])
