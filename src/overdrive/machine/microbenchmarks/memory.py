"""Memory: copy and triad after STREAM (https://www.cs.virginia.edu/stream/ref.html), and what crosses to a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from overdrive.machine.memory import available_memory
from overdrive.machine.microbenchmarks.best import Measurements, NotMeasured, best_seconds

_MIB = 1 << 20
# STREAM's rule: each array at least four times the caches together. A virtual machine is often shown the caches
# of the whole socket, 384 MB and more, so that there is an end to it.
_CACHES = 4
_LARGEST = 512 * _MIB
_OWN_CACHE = 96 * 1024  # bytes of each of the triad's arrays and each thread: three fit in half a megabyte of L2


def measure_memory(answer: Measurements, device: str, prefix: str) -> None:
    """Puts `PREFIXmemory.copy`, `PREFIXmemory.triad` and, of a processor, `PREFIXcache.triad`, in B/s.

    Counted as STREAM does: a copy moves two arrays and a triad three; that the hardware may read what it is about
    to write is not counted.
    """
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    if device == "cuda":
        size = int(min(1 << 30, torch.cuda.mem_get_info()[0] // 8))
        caches = 0
    else:
        caches = last_level_cache()
        size = int(
            min(max(64 * _MIB, _CACHES * caches), _LARGEST // (4 if answer.quick else 1), available_memory() // 8)
        )
    if size < _MIB:
        answer.missing[f"{prefix}memory"] = "too little memory is free"
        return
    held = size < _CACHES * caches
    note = f"arrays of {size / _MIB:.0f} MiB" + (", which the caches may hold in part" if held else "")

    def rate(arrays: int, act: Callable[[], object], name: str, how: str, moved: int) -> None:
        seconds = best_seconds(act, answer.share, wait)
        answer.put(f"{prefix}{name}", arrays * moved / seconds, "B/s", how)

    def all_three() -> None:
        a, b, c = (torch.ones(size // 4, device=device) for _ in range(3))
        rate(2, lambda: a.copy_(b), "memory.copy", note, size)
        rate(3, lambda: torch.add(b, c, alpha=3.0, out=a), "memory.triad", note, size)

    def in_cache() -> None:
        elements = _OWN_CACHE // 4 * torch.get_num_threads()
        a, b, c = (torch.ones(elements) for _ in range(3))
        rate(
            3 * 50,
            lambda: [torch.add(b, c, alpha=3.0, out=a) for _ in range(50)],
            "cache.triad",
            f"arrays of {_OWN_CACHE // 1024} KiB a thread",
            4 * elements,
        )

    answer.attempt(f"{prefix}memory", all_three)
    if device == "cpu":
        answer.attempt(f"{prefix}cache.triad", in_cache)


def measure_transfers(answer: Measurements) -> None:
    """Puts `transfer.to_device.pinned` and the like, in B/s: between the main memory and the first GPU."""
    size = (64 if answer.quick else 256) * _MIB

    def one(kind: str, to_device: bool) -> None:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=kind == "pinned").fill_(1)
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        target, source = (there, host) if to_device else (host, there)
        seconds = best_seconds(
            lambda: target.copy_(source, non_blocking=kind == "pinned"), answer.share, torch.cuda.synchronize
        )
        name = f"transfer.{'to' if to_device else 'from'}_device.{kind}"
        answer.put(name, size / seconds, "B/s", f"{size / _MIB:.0f} MiB, one direction at a time")

    for to_device in (True, False):
        for kind in ("pinned", "pageable"):
            name = f"transfer.{'to' if to_device else 'from'}_device.{kind}"
            answer.attempt(name, partial(one, kind, to_device))


def last_level_cache(root: Path = Path("/")) -> int:
    """Bytes of the largest caches of all processors together; 0 where the system does not tell."""
    found: dict[str, int] = {}
    level = 0
    for index in root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index*"):
        try:
            text = (index / "size").read_text().strip()
            here = int((index / "level").read_text())
            shared = (index / "shared_cpu_list").read_text().strip()
            size = int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        except (OSError, ValueError):
            continue
        if here > level:
            level, found = here, {}
        if here == level:
            found[shared] = size
    return sum(found.values())


def need_gpu() -> None:
    """
    Raises:
        NotMeasured: there is none that torch can use.
    """
    if not torch.cuda.is_available():
        raise NotMeasured("PyTorch sees no GPU here")
