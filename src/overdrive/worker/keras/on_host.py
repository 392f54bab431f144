"""What digest logs and state replays write with where steps end in Python (PyTorch, JAX): arrays of NumPy.

Nobody times a run that keeps a digest log, so that everything is brought to the host, step by step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from overdrive.seams.keras.step_log import whole
from overdrive.worker import digests


def outside() -> AbstractContextManager[None]:
    return nullcontext()


def constant(value: int) -> int:
    return value


def is_of_fractions(tensor: Any) -> bool:
    return "float" in str(tensor.dtype)


def array(variable: Any) -> Any:
    """Of a variable or tensor; a copy, which the next step does not change."""
    return np.array(keras.ops.convert_to_numpy(getattr(variable, "value", variable)))


value_of = array


def checksum(things: Iterable[Any]) -> int:
    """Of tensors and variables, in their order: a whole number of 64 bits."""
    digest = hashlib.sha256()
    for thing in things:
        values = array(thing)
        digest.update(f"{values.dtype}{values.shape}".encode())
        digest.update(repr(values.tolist()).encode() if values.dtype == object else values.tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def sketch(tensor: Any) -> list[int]:
    """`worker.digests.sketch`, as bits."""
    return [*map(whole, digests.sketch(array(tensor).reshape(-1)))]


class Tally:
    """Evaluations since the last step: how many, and checksums of what went in and of what came out."""

    def __init__(self) -> None:
        self._count, self._given, self._answers = 0, 0, 0

    def add(self, given: int, answers: int) -> None:
        self._count += 1
        self._given, self._answers = _wrapped(self._given * 31 + given), _wrapped(self._answers * 31 + answers)

    def take(self) -> list[int]:
        found = [self._count, self._given, self._answers]
        self._count, self._given, self._answers = 0, 0, 0
        return found


def _wrapped(number: int) -> int:
    """As whole numbers of 64 bits are."""
    return (number + 2**63) % 2**64 - 2**63


class Notes:
    """What a chosen step came to."""

    def __init__(self) -> None:
        self._armed = False
        self._seen: set[int] = set()  # optimizers whose application was noted since then
        self._noted: dict[str, Any] = {}

    def wanted(self, place: int) -> bool:
        return self._armed and place not in self._seen

    def arm(self) -> None:
        self._armed = True
        self._seen.clear()
        self._noted.clear()

    def note(self, place: int, values: Mapping[str, Any]) -> None:
        self._seen.add(place)
        self._noted.update({key: array(value) for key, value in values.items()})

    def results(self) -> dict[str, Any]:
        return dict(self._noted)


def dense(gradient: Any, scale: Any) -> Any:
    """A gradient as it was before a loss was scaled."""
    return array(gradient) if scale is None else array(gradient) / array(scale)


def assign(variable: Any, value: Any) -> None:
    variable.assign(value)
