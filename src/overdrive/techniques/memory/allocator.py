"""Technique `allocator`."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.machine.memory import malloc_refusal
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

# Freed memory goes back to the system only past 4 GiB, and the heap grows by 256 MiB at a time.
_GLIBC = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
# PyTorch 2.13 reads the older name first.
_TORCH_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Not garbage_collection_threshold: without a limit on the process's share of memory it does nothing (pytorch#76648).
_ON_GPU = ("expandable_segments:True", "max_split_size_mb:256")
_PAIRS_ON_A_CPU = 3
_SAVED_ON_A_GPU = 0.01  # share of a step: PyTorch's allocator keeps its blocks by itself
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


class Allocator(Technique):
    """Keeps freed memory in the process, so that each step finds its pages there already.

    What it does: before the process starts, tells glibc's `malloc` to keep large blocks instead of
    returning them to the system after every step, or loads jemalloc or tcmalloc in its place. On a GPU it sets
    PyTorch's own allocator instead: segments that grow (`expandable_segments`), or large blocks that are never
    split.

    When it helps: CPU training with activations of more than a few MB a tensor: page faults of fresh memory were worth
    2.2 times the speed at batch 2,048 of a small CNN. How many there are is another number in each process, as its
    memory happens to lie: at batch 64, four processes of one program took 7 to 11 ms a step, with 111 to 3,336
    faults, and four under this 6.6 to 7.9 ms, with none. So its duel takes three pairs of processes, and what is
    tried after it is measured more steadily. On a GPU, batches of changing shapes, which leave memory in pieces of
    the wrong size.

    When it hurts: the process holds on to its peak memory, and at least 256 MB more. What the user has set
    (`PYTORCH_ALLOC_CONF`) is left alone.

    What it watches: nothing. It is said before the process starts, and no result depends on it. What would escape: code
    that depends on the addresses of its memory, or reads memory that nobody has written to.

    Contract: exact. Only addresses change.

    Source: https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html;
    https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    name = "allocator"
    frameworks = ("torch", "keras")
    programs = ("training", "inference")
    contract = Contract.EXACT
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.35
    aims = ("time", "memory")
    survives = True
    order = 5
    knobs = (
        Knob("library", "glibc", "which malloc serves", choices=("glibc", "jemalloc", "tcmalloc", "as it is")),
        Knob("gpu", "as it is", "the setting of PyTorch's allocator on the GPU", choices=("as it is", *_ON_GPU)),
    )

    def applies(self, facts: Facts) -> str | None:
        if facts.device == "cuda":
            if "torch" in (facts.framework, facts.backend):
                return _set_by_user()
            return "on a GPU, TensorFlow and JAX have allocators of their own"
        if facts.device != "cpu":
            return f"it knows no allocator for {facts.device}"
        return malloc_refusal()

    def expected_step_saving(self, facts: Facts) -> float:
        return _SAVED_ON_A_GPU if facts.device == "cuda" else super().expected_step_saving(facts)

    def processes(self, facts: Facts) -> int:
        return _PAIRS_ON_A_CPU if facts.device == "cpu" else 1

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        if facts.device == "cuda":
            return [{"library": "as it is", "gpu": setting} for setting in _ON_GPU]
        present = [name for name in ("jemalloc", "tcmalloc") if library(name)]
        return [{"library": name} for name in ("glibc", *present)]

    def environment(self, settings: Settings) -> dict[str, str]:
        needed = {}
        name, gpu = str(settings["library"]), str(settings.get("gpu", "as it is"))
        if name == "glibc":
            needed.update(_GLIBC)
        elif name != "as it is" and (path := library(name)):
            needed["LD_PRELOAD"] = path
        if gpu != "as it is" and not _set_by_user(but=gpu):
            needed[_TORCH_NAMES[1]] = gpu
        return needed

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if settings["gpu"] != "as it is" and (reason := _set_by_user(but=str(settings["gpu"]))):
            raise CannotInstall(reason)
        return seams.handle()


def _set_by_user(but: str = "") -> str | None:
    """That the user has set PyTorch's allocator; `but`: to anything else than this."""
    for name in _TORCH_NAMES:
        if os.environ.get(name, but) != but:
            return f"{name} is set already"
    return None


def library(name: str) -> str | None:
    """Where this allocator's shared library lies, if it is installed."""
    stems = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc_minimal", "tcmalloc")}[name]
    for stem in stems:
        for folder in _FOLDERS:
            found = sorted(Path(folder).glob(f"lib{stem}.so.*"))
            if found:
                return str(found[0])
        if located := ctypes.util.find_library(stem):
            return located
    return None
