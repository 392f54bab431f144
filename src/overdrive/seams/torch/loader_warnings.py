"""What PyTorch warns of when it opens a loader: said from the line where it would be without us.

Python shows a warning once for each line that it comes from, and each kind of iterator has its own: from another line
it would be shown once more.
"""

from __future__ import annotations

import dis
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, SimpleNamespace
from typing import Any

from torch.utils.data import DataLoader, dataloader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter


@contextmanager
def warned_as(workers: int, goes_on: bool = False) -> Iterator[None]:
    """An iterator that is opened inside warns as one with so many workers would; the outermost call decides.

    Args:
        goes_on: these workers live on, and were begun before: PyTorch would make no other iterator, and warn of none.
    """
    if vars(dataloader)["warnings"] is not warnings:
        yield
        return
    alone, together = _SingleProcessDataLoaderIter.__init__, _MultiProcessingDataLoaderIter.__init__
    opened, meant = (alone, together) if workers else (together, alone)

    def warn(message: Any, category: Any = None, stacklevel: int = 1, **how: Any) -> None:
        if sys._getframe(1).f_code is DataLoader.check_worker_number_rationality.__code__:
            return _warn_of_number(message, category) if workers == asked.num_workers else None
        if goes_on:
            return None
        frame = sys._getframe(stacklevel)
        if frame.f_code is not opened.__code__:
            return warnings.warn(message, category, stacklevel=stacklevel + 1, **how)
        space = frame.f_globals
        registry = space.setdefault("__warningregistry__", {})
        path, line = frame.f_code.co_filename, _first_line(meant)
        warnings.warn_explicit(message, category or UserWarning, path, line, space["__name__"], registry)

    asked = SimpleNamespace(num_workers=workers)
    vars(dataloader)["warnings"] = SimpleNamespace(**{**vars(warnings), "warn": warn})
    try:
        if not goes_on:
            DataLoader.check_worker_number_rationality(asked)  # type: ignore[arg-type]
        asked.num_workers = -1  # ours are nobody's concern
        yield
    finally:
        vars(dataloader)["warnings"] = warnings


def _warn_of_number(message: Any, category: Any) -> None:
    """From the line where a loader is opened."""
    code: CodeType = DataLoader._get_iterator.__code__
    name = DataLoader.check_worker_number_rationality.__name__
    place = next(each.offset for each in dis.get_instructions(code) if each.argval == name)
    line = next(line for first, last, line in code.co_lines() if first <= place < last)
    registry = vars(dataloader).setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category or UserWarning, code.co_filename, line or 1, dataloader.__name__, registry)


def _first_line(function: Any) -> int:
    """Where its body begins: with the call of the common `__init__`, which warns."""
    code: CodeType = function.__code__
    return next(line for *_, line in code.co_lines() if line and line > code.co_firstlineno)
