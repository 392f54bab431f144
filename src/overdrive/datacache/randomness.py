"""Guards random generators while samples are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from overdrive.core.rng import States
from overdrive.forks.layout import Unfit


@contextmanager
def left_alone() -> Iterator[None]:
    """What is done inside must leave all states as they are; they are put back if it does not.

    Raises:
        Unfit: it drew.
    """
    before = States.now()
    try:
        yield
    finally:
        drew = not before.same(States.now())
        if drew:
            before.restore()
    if drew:
        raise Unfit("fetching a sample draws random numbers")
