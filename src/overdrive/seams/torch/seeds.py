"""Seam *seed set*: wherever the program seeds a generator, so that a trial can run it under other seeds.

Generators objects (`torch.Generator().manual_seed`, `numpy.random.default_rng`) are left as they are:
they most often fix a data split, which is part of the program, not of its chance.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.seed_set.subscribers:
        return []

    def seeding(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(value: Any = None, *args: Any, **kwargs: Any) -> Any:
            return original(hub.seed_set.apply(value) if isinstance(value, int) else value, *args, **kwargs)

        seed.__dict__["overdrive_seeds"] = True
        return seed

    holders: list[tuple[Any, str]] = [(torch, "manual_seed"), (random, "seed")]
    if "numpy" in sys.modules:
        import numpy.random

        holders.append((numpy.random, "seed"))
    for holder, name in holders:
        if not getattr(getattr(holder, name), "overdrive_seeds", False):  # Keras's seams may have come before
            patches.replace(holder, name, seeding(getattr(holder, name)))
    return []
