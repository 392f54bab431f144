"""Variables of this process's environment, changed for a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


def set_variables(told: Mapping[str, str | None]) -> Callable[[], None]:
    """None: it is taken away. Returns what puts back those that were set."""
    before = {name: os.environ.get(name) for name in told}
    _set(told)
    return lambda: _set(before)


@contextmanager
def variables_set(told: Mapping[str, str | None]) -> Iterator[None]:
    """Within it they are set."""
    put_back = set_variables(told)
    try:
        yield
    finally:
        put_back()


def _set(told: Mapping[str, str | None]) -> None:
    for name, value in told.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
