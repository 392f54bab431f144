"""What lies in memory between two steps of a Keras program, on any backend."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from overdrive.seams.answering import AnsweringModel
from overdrive.seams.keras.internals import trained_variables
from overdrive.seams.keras.step_log import unwrapped


def variables(models: Iterable[Any], optimizers: Iterable[Any]) -> dict[str, list[Any]]:
    """By category."""
    optimizers = [unwrapped(each) for each in optimizers if not isinstance(each, AnsweringModel)]
    trained = trained_variables(optimizers)
    owned = {id(each): each for each in (*trained, *(weight for model in models for weight in model.weights))}
    kept = {id(each): each for optimizer in optimizers for each in optimizer.variables}
    return {"parameters": list(owned.values()), "optimizer state": list(kept.values())}


def standing(models: Iterable[Any], optimizers: Iterable[Any]) -> dict[str, int]:
    """Bytes by category."""
    return {name: sum(map(_bytes, each)) for name, each in variables(models, optimizers).items()}


def _bytes(variable: Any) -> int:
    kind = getattr(variable.dtype, "name", None) or str(variable.dtype)
    bits = re.search(r"\d+", kind)  # of "float32", "bfloat16", "float8_e4m3fn"; a "bool" has a byte
    return int(math.prod(variable.shape)) * (int(bits.group()) if bits else 8) // 8
