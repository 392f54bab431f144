"""Several instances of an export's model, each with some of the cores, held to the one that was proved."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

from overdrive.core.units import several
from overdrive.machine.cpu import granted_cores
from overdrive.serve.independent import near
from overdrive.serve.model import CannotServe, ServedModel, load

_TRIED = 8  # made-up inputs


def threads_of(instances: int, asked: int) -> int:
    """How many each may use: what was asked for, or its share of the cores; 0: as many as the engine takes."""
    return asked or (max(1, granted_cores() // instances) if instances > 1 else 0)


def load_instances(folder: Path, count: int, threads: int) -> ServedModel:
    """
    Raises:
        CannotServe: as `load`; or with so many threads it answers otherwise than the export that was proved.
    """
    proved = load(folder)
    if count == 1 and not threads:
        return proved
    made = load(folder, count, threads)
    chance = np.random.default_rng(0)
    for _ in range(_TRIED):
        inputs = made.made_up(1, chance)
        try:
            wanted = proved.answer(inputs)
            alike = all(near(each(inputs), wanted) for each in (made.answer, *made.others))
        except Exception as error:
            raise CannotServe(
                f"instances cannot be held to the export, since it fails on made-up inputs ({str(error)[:200]})"
            ) from None
        if not alike:
            raise CannotServe(f"with {several(threads, 'thread')} it answers otherwise than the export that was proved")
    del proved
    gc.collect()  # its weights and its threads
    return made
