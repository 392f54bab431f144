"""A seed is changed once, however many functions it passes through, and however it is given."""

from __future__ import annotations

import random
from types import SimpleNamespace

from overdrive.seams import seeding
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def test_a_seed_is_changed_once_by_two_frameworks_seams() -> None:
    seeded: list[object] = []
    library = SimpleNamespace(seed=lambda a=None: seeded.append(a))
    other = SimpleNamespace(set_seed=lambda seed: library.seed(seed))  # as Keras's seeds Python and NumPy
    plain = library.seed, other.set_seed
    hub, patches = Seams(), Patches()
    hub.seed_set.subscribe(lambda seed: seed + 10)
    seeding.enter(hub, patches, [(library, "seed")])
    seeding.enter(hub, patches, [(other, "set_seed"), (library, "seed")])
    other.set_seed(1)
    other.set_seed(seed=2)
    library.seed(3)
    library.seed(a=4)
    library.seed()
    library.seed("text")
    assert seeded == [11, 12, 13, 14, None, "text"]
    patches.restore()
    assert library.seed is plain[0] and other.set_seed is plain[1]


def test_where_nobody_changes_seeds_nothing_is_patched() -> None:
    before = random.seed
    seeding.enter(Seams(), Patches(), [(random, "seed")])
    assert random.seed is before
