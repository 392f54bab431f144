"""Seam *seed set*: wherever the program seeds a generator, so that a trial can run it under other seeds.

As in PyTorch's: generators that are objects (`keras.random.SeedGenerator(7)`, `seed=` of a layer or of a data set's
`shuffle`) are left as they are.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy.random

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.seed_set.subscribers:
        return []
    inside = threading.local()

    def seeding(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(seed: Any = None, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "seeding", False) or not isinstance(seed, int):
                return original(seed, *args, **kwargs)
            inside.seeding = True  # keras.utils.set_random_seed calls all the others
            try:
                return original(hub.seed_set.apply(seed), *args, **kwargs)
            finally:
                inside.seeding = False

        seed.__dict__["overdrive_seeds"] = True
        return seed

    holders = [(keras.utils, "set_random_seed"), (random, "seed"), (numpy.random, "seed")]
    if "tensorflow" in sys.modules:
        holders.append((sys.modules["tensorflow"].random, "set_seed"))
    for holder, name in holders:
        if not getattr(getattr(holder, name), "overdrive_seeds", False):  # PyTorch's seams may have come before
            patches.replace(holder, name, seeding(getattr(holder, name)))
    return []
