"""Seam *seed set*: wherever the program seeds a generator, so that a trial can run it under other seeds.

As in PyTorch's: generators that are objects (`keras.random.SeedGenerator(7)`, `seed=` of a layer or of a data set's
`shuffle`) are left as they are.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy.random

from overdrive.seams import seeding
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    functions: list[tuple[Any, str]] = [(keras.utils, "set_random_seed"), (random, "seed"), (numpy.random, "seed")]
    if "tensorflow" in sys.modules:
        functions.append((sys.modules["tensorflow"].random, "set_seed"))
    seeding.enter(hub, patches, functions)
    return []
