"""Things with a number each, those together that follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def in_runs(things: Iterable[T], number: Callable[[T], Any] = lambda each: each) -> list[list[T]]:
    """`number`: of a thing, in rising order."""
    runs: list[list[T]] = []
    for each in things:
        if runs and number(runs[-1][-1]) + 1 == number(each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs
