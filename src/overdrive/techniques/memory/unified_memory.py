"""Technique `unified_memory`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.machine.memory import available_memory
from overdrive.seams.parameters import parameters_of
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_SHARE = 0.8  # of the free main memory, at most
_FLAGS = 1 | 2  # cudaHostAllocPortable, cudaHostAllocMapped: every GPU of the process sees it at its own address
# Not cudaMallocManaged: its pages move to a GPU that is full, and push out others, again and again.
_SOURCE = """
#include <dlfcn.h>
#include <stddef.h>
static int (*host_alloc)(void **, size_t, unsigned);
static int (*host_free)(void *);
static size_t room;
int overdrive_open(const char *runtime, size_t bytes) {
    void *library = dlopen(runtime, RTLD_NOW);
    if (!library) return 0;
    *(void **)&host_alloc = dlsym(library, "cudaHostAlloc");
    *(void **)&host_free = dlsym(library, "cudaFreeHost");
    room = bytes;
    return host_alloc && host_free;
}
void *overdrive_alloc(size_t size, int device, void *stream) {
    void *memory = NULL;
    if (size > room || host_alloc(&memory, size, FLAGS)) return NULL;
    room -= size;
    return memory;
}
void overdrive_free(void *memory, size_t size, int device, void *stream) {
    host_free(memory);
    room += size;
}
"""


class UnifiedMemory(Technique):
    """Lets what exceeds the GPU's memory lie in the main memory, where the GPU reads and writes it in place.

    What it does: when the optimizer is made, reserves page-locked main memory that is mapped into the GPU's
    addresses, in a pool of PyTorch's allocator that is used only when the GPU's own memory has run out
    (`MemPool(use_on_oom=True)`). Never more than four fifths of the free main memory. The few lines of C between
    PyTorch and the CUDA runtime are compiled when they are first needed.

    When it helps: a program that runs out of GPU memory by a little.

    When it hurts: nothing, while the GPU's memory is enough, but for the reserved main memory. What lies in the main
    memory is reached over the bus, at a hundredth of the speed of the GPU's own (60 GB/s for PCIe 5 against 4,800
    GB/s on an H200). A model that does not fit by itself is not helped: it is there before its optimizer.

    What it watches: nothing after the optimizer was made. Nothing of a result can escape, since memory is all it
    changes; a program that asks how much of it is free is told of the GPU's alone.

    Contract: exact. Only addresses change.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.MemPool.html;
    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """

    name = "unified_memory"
    contract = Contract.EXACT
    targets = ("forward", "backward", "optimizer")
    aims = ("memory",)
    order = 8
    knobs = (Knob("gib", 8, "main memory to reserve (GiB)", low=1, high=4096),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return "the tensors lie in the main memory already"
        if not facts.parameters:
            return "no optimizer was seen to train anything"
        return None if _compiler() else "there is no C compiler for it on this machine"

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        free = int(_SHARE * self.own(facts).get("memory_available", 0)) >> 30
        return [{"gib": gib} for gib in (8, 32) if gib <= free]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        return lambda: {"memory_available": available_memory()}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if not _compiler():
            raise CannotInstall("there is no C compiler for it on this machine")
        reserve = _Reserve(int(settings["gib"]) << 30)
        seams.optimizer_made.subscribe(reserve.made)
        seams.on_undo(reserve.undo)
        return seams.handle()


class _Reserve:
    allocators: ClassVar[list[Any]] = []  # for as long as the process: a tensor may outlive the pool it lies in

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool: Any = None

    def made(self, optimizer: Any, models: list[Any]) -> None:
        first = next(iter(parameters_of(optimizer)), None)
        if self._pool is not None or first is None:
            return
        if first.device.type != "cuda":
            raise CannotInstall("the tensors lie in the main memory already")
        if self._size > (free := int(_SHARE * available_memory())):
            raise CannotInstall(f"only {free / 2**30:.1f} GiB of main memory can be taken")
        import torch

        with tempfile.TemporaryDirectory(prefix="overdrive-") as folder:
            path = build(Path(folder))
            # PyTorch has loaded its runtime already: the name alone finds that one.
            opened(path, f"libcudart.so.{str(torch.version.cuda).split('.')[0]}", self._size)
            allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "overdrive_alloc", "overdrive_free")
        pool = torch.cuda.MemPool(allocator.allocator(), use_on_oom=True)  # type: ignore[no-untyped-call]
        from overdrive.seams.torch.control import set_aside

        set_aside(first.device.index or 0, self._size - (4 << 20))
        with torch.cuda.use_mem_pool(pool, first.device):
            # Taken and given back: free in this pool. It goes by whole 2 MiB.
            torch.empty(self._size - (4 << 20), dtype=torch.uint8, device=first.device)
        self.allocators.append(allocator)
        self._pool = pool

    def undo(self) -> None:
        self._pool = None  # torch gives its memory back when no tensor lies in it


def build(folder: Path) -> Path:
    """The library between PyTorch and the CUDA runtime."""
    compiler = _compiler()
    if compiler is None:
        raise CannotInstall("there is no C compiler for it on this machine")
    source, library = folder / "mapped.c", folder / "mapped.so"
    source.write_text(_SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", f"-DFLAGS={_FLAGS}", str(source), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise CannotInstall(f"its C code could not be compiled ({done.stderr.strip().splitlines()[-1:]})")
    return library


def opened(library: Path, runtime: str, room: int) -> ctypes.CDLL:
    """The library, ready to take `room` bytes from this CUDA runtime."""
    loaded = ctypes.CDLL(str(library))
    loaded.overdrive_open.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if not loaded.overdrive_open(runtime.encode(), room):
        raise CannotInstall(f"the CUDA runtime {runtime} was not found")
    return loaded


def _compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
