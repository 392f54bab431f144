"""Guards random generators while samples are fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from overdrive.core.rng import States
from overdrive.forks.layout import Unfit


@contextmanager
def left_alone(now: Callable[[], Any] = States.now) -> Iterator[None]:
    """What is done inside must leave all states as they are; they are put back if it does not.

    Args: `now`: gives the states.

    Raises:
        Unfit: it drew.
    """
    before = now()
    try:
        yield
    finally:
        drew = not before.same(now())
        if drew:
            before.restore()
    if drew:
        raise Unfit("fetching a sample draws random numbers")
