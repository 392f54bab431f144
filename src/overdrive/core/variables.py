"""Variables of this process's environment, changed for a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


def set_variables(told: Mapping[str, str]) -> Callable[[], None]:
    """Returns what puts back those that were set."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)

    def put_back() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return put_back


@contextmanager
def variables_set(told: Mapping[str, str]) -> Iterator[None]:
    """Within it they are set."""
    put_back = set_variables(told)
    try:
        yield
    finally:
        put_back()
