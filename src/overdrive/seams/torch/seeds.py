"""Seam *seed set*: wherever the program seeds a generator, so that a trial can run it under other seeds.

Generators objects (`torch.Generator().manual_seed`, `numpy.random.default_rng`) are left as they are:
they most often fix a data split, which is part of the program, not of its chance.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams import seeding
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    functions: list[tuple[Any, str]] = [(torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed")]
    functions += [(torch.cuda, "manual_seed"), (torch.cuda, "manual_seed_all")]
    if "numpy" in sys.modules:
        functions.append((sys.modules["numpy"].random, "seed"))
    seeding.enter(hub, patches, functions)
    return []
