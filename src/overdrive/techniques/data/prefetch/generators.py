"""Python's, numpy's and torch's global random generators one by one, as plain data that a pipe can carry."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np

from overdrive.datacache.layout import Unfit

NAMES = ("python", "numpy", "torch")
Told = list[Any]  # one generator's state: [bytes as hex, what else it holds]


def state(name: str) -> Told:
    """
    Raises:
        Unfit: numpy's generator is not the usual one.
    """
    if name == "python":
        version, words, gauss = random.getstate()
        return [np.array(words, dtype=np.uint64).tobytes().hex(), [version, gauss]]
    if name == "numpy":
        told = np.random.get_state()
        if not isinstance(told, tuple):
            raise Unfit("numpy's global random generator is not the usual one")
        kind, keys, *rest = told
        return [keys.tobytes().hex(), [str(kind), *map(_plain, rest)]]
    import torch

    return [torch.get_rng_state().numpy().tobytes().hex(), []]


def restore(name: str, told: Told) -> None:
    data, rest = bytes.fromhex(told[0]), told[1]
    if name == "python":
        random.setstate((rest[0], tuple(np.frombuffer(data, dtype=np.uint64).tolist()), rest[1]))
    elif name == "numpy":
        np.random.set_state((rest[0], np.frombuffer(data, dtype=np.uint32), *rest[1:]))
    else:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def states() -> dict[str, Told]:
    """All of them (0.1 ms)."""
    return {name: state(name) for name in NAMES}


def drawn_from(before: dict[str, Told], after: dict[str, Told]) -> list[str]:
    """The generators that differ."""
    return [name for name in NAMES if before[name] != after[name]]


def digest(told: Told) -> str:
    """Tells two states apart."""
    return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
