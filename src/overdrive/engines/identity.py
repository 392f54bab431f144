"""The key that an engine is kept under: it changes with everything that could change the engine."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import torch

from overdrive.changes.fingerprint import objects_again
from overdrive.engines.runtime import Array, Place, Runtime
from overdrive.engines.signature import Signature

_ADDRESS = " at 0x"  # in a text: it is another one in each process


def identity(
    model: torch.nn.Module,
    given: Signature,
    runtime: Runtime,
    examples: Sequence[Sequence[Array]],
    places: Sequence[Place] = (),
) -> str | None:
    """Of the engine for calls like this one, and for other sizes in these places; None where it cannot be told in
    another process.

    In it are all that the model is made of (its tensors' content, attributes, hooks, the code of all that it may call,
    as the fingerprint of a data set has them), the form of the call, the versions of the libraries, PyTorch's settings
    that exporting asks for, and what the engine is calibrated by.
    """
    try:
        found, form = objects_again(model), repr((given.key, places) if places else given.key)
    except Exception:  # something of the program's that cannot be looked at: it is built in each run
        return None
    if found.hidden or _ADDRESS in form:
        return None
    parts = (runtime.title, runtime.versions, sys.version, torch.__version__, found.digest, form, settings())
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass"))
    for each in examples if runtime.calibrating else ():
        for array in each:
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.data if array.flags.c_contiguous else array.tobytes())
    return digest.hexdigest()


def settings() -> tuple[Any, ...]:
    """PyTorch's own, that decide what is exported, and what the model answers. Some 0.4 us."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    )
