"""What lies in memory between two steps of a Keras program, as far as TensorFlow tells.

On a CPU it does not say what its graphs hold meanwhile; on a GPU its allocator knows the most that was held.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from overdrive.machine.memory import peak_resident
from overdrive.seams.keras.control import peak_memory


def memory_of(models: Iterable[Any], optimizers: Iterable[Any]) -> dict[str, Any]:
    """Bytes: `standing` by category, and the most that was held at once, with all else that the process has."""
    optimizers = list(optimizers)
    trained = [each for optimizer in optimizers for each in optimizer._trainable_variables]
    owned = {id(each): each for each in (*trained, *(weight for model in models for weight in model.weights))}
    kept = {id(each): each for optimizer in optimizers for each in optimizer.variables}
    on_gpu = peak_memory()
    return {
        "standing": {"parameters": _size(owned.values()), "optimizer state": _size(kept.values())},
        "most": {"name": "of the GPU at its peak", "bytes": on_gpu}
        if on_gpu
        else {"name": "the whole process at its peak", "bytes": peak_resident()},
    }


def _size(variables: Iterable[Any]) -> int:
    import keras

    bits = {"bool": 8, "float8_e4m3fn": 8, "float8_e5m2": 8}
    found = 0
    for each in variables:
        name = keras.backend.standardize_dtype(each.dtype)
        digits = "".join(letter for letter in name if letter.isdigit())
        found += math.prod(each.shape) * (bits.get(name) or int(digits or 32)) // 8
    return found
