"""Variables of this process's environment, changed for a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager


def set_variables(told: Mapping[str, str | None]) -> Callable[[], None]:
    """None: it is taken away. Returns what puts back those that were set."""
    before = {name: os.environ.get(name) for name in told}
    set_in(os.environ, told)
    return lambda: set_in(os.environ, before)


@contextmanager
def variables_set(told: Mapping[str, str | None]) -> Iterator[None]:
    """Within it they are set."""
    put_back = set_variables(told)
    try:
        yield
    finally:
        put_back()


def set_in(environment: MutableMapping[str, str], told: Mapping[str, str | None]) -> None:
    """For good."""
    for name, value in told.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
