"""Warnings of ours that the program's user is not to see."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def silenced() -> Iterator[None]:
    """No warning is shown inside.

    `warnings.catch_warnings` and `simplefilter` would have Python forget which of the program's own warnings were shown
    already, so that those come once more. A filter put into the list by hand does not.
    """
    filters: Any = warnings.filters
    ours = ("ignore", None, Warning, None, 0)
    filters.insert(0, ours)
    try:
        yield
    finally:
        with suppress(ValueError):  # somebody has emptied the list
            filters.remove(ours)
