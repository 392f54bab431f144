"""Seeds of a trial: a program that sets none can be compared with itself, and any can be run under others."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from overdrive.seams import frameworks, seeding
from overdrive.seams.arrival import Arrival
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def seeds(seed: int) -> Callable[[Seams], None]:
    """An observer that seeds the program where it sets no seed, and changes those it sets where `seed` is not 0."""

    def observe(seams: Seams) -> None:
        seams.framework_arrived.subscribe(lambda: seed_everything(seed, seams.frameworks[-1]))
        if seed:
            seams.seed_set.subscribe(lambda value: (value + 7919 * seed) % 2**32)
            _watch_without_framework(seams)

    return observe


def _watch_without_framework(seams: Seams) -> None:
    """Python's and NumPy's seeds, which programs set that import no framework."""
    patches = Patches()
    seams.on_undo(patches.restore)
    seeding.enter(seams, patches, [(random, "seed")])
    numpy = Arrival("numpy", lambda: seeding.enter(seams, patches, [(sys.modules["numpy"].random, "seed")]))
    seams.on_undo(numpy.stop)
    numpy.watch()


def seed_everything(seed: int, framework: str) -> None:
    """A program that sets no seed gets this one, so that two trials of it can be compared."""
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed)
    frameworks.seams_of(framework).seed(seed)
