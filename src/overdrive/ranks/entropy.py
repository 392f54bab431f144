"""Entropy that a program never asks for by a seed, the same on all ranks.

`random`, NumPy and PyTorch seed themselves from the system, and so do generators that are made without a seed, uuid4
and what asks `os.urandom`. Here all of that comes from one stream that every rank reads alike.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from typing import Any

from overdrive.core.rng import reseed
from overdrive.core.whose import is_ours, is_python

_PROCESSES = f"{os.sep}multiprocessing{os.sep}"


class Entropy:
    """An endless stream of bytes from one seed; who reads equally often reads equal bytes."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode()
        self._reads = 0

    def apart(self, rank: int) -> None:
        """From here on, that of this rank alone."""
        self._seed += f" {rank}".encode()

    def bytes(self, count: int) -> bytes:
        self._reads += 1
        return hashlib.shake_256(self._seed + _worker() + self._reads.to_bytes(8, "big")).digest(count)

    def number(self) -> int:
        return int.from_bytes(self.bytes(8), "big") >> 1


def _worker() -> bytes:
    """Which of a loader's workers this process is: each has chance of its own, the same on all ranks."""
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    info = module.get_worker_info() if module else None
    return f"{info.id} {info.seed}".encode() if info else b""


def _asked_by_us() -> bool:
    """Whether chance is for a name of a file of ours, say, or of what processes share: how many are needed may be
    another number on another rank, and when a run is made again."""
    frame: Any = sys._getframe(2)
    while frame is not None and is_python(frame.f_code.co_filename):
        if _PROCESSES in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return frame is not None and is_ours(frame.f_code.co_filename)


def share(entropy: Entropy) -> None:
    """From here on this process takes its entropy from there. For good: there is no way back in this process."""
    of_system, plain = os.urandom, random.Random.seed

    def urandom(size: int) -> bytes:
        return of_system(size) if _asked_by_us() else entropy.bytes(size)

    modules: Any = (os, random)
    for module, name in ((modules[0], "urandom"), (modules[1], "_urandom")):
        setattr(module, name, urandom)

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        plain(self, entropy.number() if a is None and not _asked_by_us() else a, version)

    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = random._inst.seed
    reseed(entropy.number())


def seed_tensorflow(seed: str) -> None:
    """As TensorFlow arrives: a program that sets no seed would draw from the system, past Python."""
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:3], "big"))


def share_torch(entropy: Entropy) -> None:
    """As PyTorch arrives. NumPy, whenever it comes, seeds itself by what the system gives."""
    import torch

    seed = entropy.number() >> 1

    def seed_anew() -> int:
        value = entropy.number() >> 1
        torch.manual_seed(value)
        return value

    torch.manual_seed(seed)
    torch.seed = torch.random.seed = seed_anew
