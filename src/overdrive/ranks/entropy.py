"""Entropy that a program never asks for by a seed, the same on all ranks, and in all trials.

`random`, NumPy and PyTorch seed themselves from the system, and so do generators that are made without a seed
(`np.random.default_rng()`, the environments of gymnasium), uuid4 and what asks `os.urandom`. Here all of that comes
from one stream for each place in the program that asks: what a library asks besides, as it compiles, shifts no other.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections import Counter
from typing import Any

from overdrive.core.in_place import InPlace, stands
from overdrive.core.rng import reseed
from overdrive.core.whose import is_ours, is_python

_PROCESSES = f"{os.sep}multiprocessing{os.sep}"


class Entropy:
    """Endless streams of bytes from one seed, one by each name; who reads equally often reads equal bytes."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode()
        self._reads: Counter[str] = Counter()

    def apart(self, rank: int) -> None:
        """From here on, that of this rank alone."""
        self._seed += f" {rank}".encode()

    def bytes(self, count: int, asker: str = "") -> bytes:
        self._reads[asker] += 1
        read = f"{asker} {self._reads[asker]}".encode()
        return hashlib.shake_256(self._seed + _process() + read).digest(count)

    def number(self, asker: str = "") -> int:
        return int.from_bytes(self.bytes(8, asker), "big") >> 1


def _process() -> bytes:
    """Which of a loader's workers this process is, or of those that the program has forked: each has chance of its own,
    the same on all ranks."""
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if info := module.get_worker_info() if module else None:
        return f"{info.id} {info.seed}".encode()
    module = sys.modules.get("multiprocessing.process")
    identity = module.current_process()._identity if module else ()
    return repr(identity).encode() if identity else b""


def _asker() -> str | None:
    """The place that asks for chance. None where it is for a name of a file of ours, say, or of what processes share:
    how many are needed may be another number on another rank, and when a run is made again."""
    frame: Any = sys._getframe(2)
    while frame is not None and is_python(frame.f_code.co_filename):
        if _PROCESSES in frame.f_code.co_filename:
            return None
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    place = f"{frame.f_globals.get('__name__')} {code.co_name} {frame.f_lineno}"
    return None if is_ours(code.co_filename) else place


def share(entropy: Entropy) -> None:
    """From here on this process takes its entropy from there. For good: there is no way back in this process."""
    of_system, plain = os.urandom, random.Random.seed

    def urandom(size: int) -> bytes:
        asker = _asker()
        return of_system(size) if asker is None else entropy.bytes(size, asker)

    stand_in = InPlace(of_system, urandom)
    modules: Any = (os, random)
    for module, name in ((modules[0], "urandom"), (modules[1], "_urandom")):
        setattr(module, name, stand_in)

    stands(stand_in, os, "urandom")

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and (asker := _asker()) is not None:
            a = entropy.number(asker)
        plain(self, a, version)

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
