"""Puts seam *seed set* around functions that seed a generator, whichever framework's seams they belong to.

One of them may call others, which are then left alone: `keras.utils.set_random_seed` seeds Python, NumPy and the
backend, whose seams may all be there, and a seed must not be changed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

from overdrive.core.flag import FlagOfThread
from overdrive.core.in_place import in_place_of
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches

_seeds = FlagOfThread()
_NAMES = ("seed", "a")  # of the argument: Python's `random.seed` calls it so


def enter(hub: Seams, patches: Patches, functions: Iterable[tuple[Any, str]]) -> None:
    """`functions`: holder and name. Those that another framework's seams have reached already are left as they are."""
    if not hub.seed_set.wanted:
        return
    for holder, name in functions:
        if not getattr(getattr(holder, name), "overdrive_seeds", False):
            patches.replace(holder, name, _seeding(hub, getattr(holder, name)))


def _seeding(hub: Seams, original: Callable[..., Any]) -> Callable[..., Any]:
    @in_place_of(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        name = next((each for each in _NAMES if each in kwargs), "")
        value = args[0] if args else kwargs.get(name)
        if _seeds or not isinstance(value, (int, float, Integral)):
            return original(*args, **kwargs)
        with _seeds:
            other = hub.seed_set.apply(value)
            return original(other, *args[1:], **kwargs) if args else original(**{**kwargs, name: other})

    seed.__dict__["overdrive_seeds"] = True
    return seed
