"""The digest of a training step: what went into it and, where asked, hashes of all that came out of it.

Written in trials that nobody times. Two digest logs are compared entry by entry (`evidence.equivalence`): what differs
first says where two runs part. A framework's own digest log (`worker.torch.digests`, `worker.keras.digests`) collects
what an entry holds; what is the same in both is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from overdrive.core.records import StepRecord

# "perturbed" is "inputs" of a program whose first parameters are changed by this share: what it is given all the same
# is data, what changes with them was made by the model.
NUDGE = 1e-6
# "shaken" is "inputs" of a program that only calls its model, with parameters changed by so much, at random: fewer bits
# make labels fall otherwise, and what is made of labels (the next token) is hardly moved by a nudge.
SHAKE = 0.1
PARTS = ("parameters", "buffers", "optimizer_state", "random_states")
MOST_SKETCHED = 1 << 16  # elements of a tensor that its sketch is made of
_WAVE = 12.9898
Slot: TypeAlias = list[float]  # checksum of a tensor that a model was given, and its sketch


class DigestLog:
    """`kind`: "inputs"; "bits" hashes parameters, buffers, optimizer state and random states too; "perturbed" or
    "shaken"."""

    def __init__(self, kind: str) -> None:
        self.bits = kind == "bits"
        self.perturbed, self.shaken = kind == "perturbed", kind == "shaken"

    def entry(
        self,
        *,
        batches: str,
        samples: int,
        calls: str,
        inputs: list[Slot],
        evaluation: list[Slot],
        settings: str,
        heard: str,
        parts: Sequence[str],
    ) -> StepRecord:
        """Of one step. `heard`: hash of what evaluations came to; `parts`: hashes by `PARTS`, where bits are asked."""
        bits = {"evaluation_results": heard, **dict(zip(PARTS, parts, strict=True))} if self.bits else {}
        return StepRecord(batches, samples, calls, tuple(inputs), tuple(evaluation), settings, **bits)


def hashed(values: Iterable[Any]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """A setting as its text is the same in every run; of what is no number or text, its type."""
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def sketch(values: Any) -> list[float]:
    """Three numbers of a flat array, that rounding hardly moves and other data does; of elements from all over it.

    A cosine-weighted sum over the norm, the mean over the root mean square, and the logarithm of the latter. Rounding
    to bf16 changes the first by less than 0.02 and the others by less than 0.005; other samples of the same data change
    the first by about 0.7, a wrong normalisation the last two by as much as it is wrong.
    """
    flat = np.nan_to_num(values[:: spacing(values.size)].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    # Not by BLAS: its threads spin beside those of the framework, and steps of 60 ms then took 125.
    norm = max(float(np.einsum("i,i", flat, flat)) ** 0.5, 1e-30)
    size = max(flat.size, 1)
    root_mean_square = norm / size**0.5
    sums = float(np.einsum("i,i", flat, wave(flat.size))) / norm, float(flat.sum()) / size / root_mean_square
    return [*sums, float(np.log(root_mean_square))]


def spacing(count: int, most: int = MOST_SKETCHED) -> int:
    """Every how many elements one is looked at. An odd number: rows of a picture are as long as a power of two."""
    return -(-count // most) | 1


@lru_cache(maxsize=16)
def wave(length: int) -> Any:
    """The weights of a sketch's first number."""
    return np.cos(np.arange(length) * _WAVE)
