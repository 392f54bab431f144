"""Whose code asks: the program's own, or a library's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overdrive.core.whose import is_library


def asked_by_program(frame: Any, through: Sequence[str]) -> bool:
    """
    Args:
        frame: the one that asks, or one within it.
        through: endings of the names of files that only pass the question on.
    """
    while frame is not None and frame.f_code.co_filename.endswith(tuple(through)):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return not name.startswith("<frozen") and not is_library(name)
