"""A value that another run may have otherwise: the program's line where it stands, and what is to be set there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from overdrive.core.hyperparameters import ValuePlace
from overdrive.core.settings import Value
from overdrive.core.whose import is_library, is_ours
from overdrive.seams.frameworks import MODULES


def line_of_program() -> str:
    """`train.py:12`: the innermost line under way that belongs to no library; the outermost where all do."""
    frame: Any = sys._getframe(1)
    frameworks = _folders_of_frameworks()
    last = ""
    while frame is not None:
        file = frame.f_code.co_filename
        last = f"{os.path.basename(file)}:{frame.f_lineno}"
        if not (file.startswith(("<", *frameworks)) or is_ours(file) or is_library(file)):
            return last
        frame = frame.f_back
    return last


def _folders_of_frameworks() -> list[str]:
    """Of those that are imported; they may have been built in place."""
    modules = (sys.modules.get(name) for names in MODULES.values() for name in names)
    files = (getattr(module, "__file__", None) for module in modules)
    return [os.path.dirname(file) + os.sep for file in files if file]


def asked_for(place: ValuePlace, value: float, values: Mapping[str, Value], first: dict[str, float]) -> float | None:
    """What is to be set there, if anything.

    The first value that the program has on a line is the one that is meant, whatever it is by now; rates of optimizers
    that it makes there later, for another phase, keep their proportion to that.

    Args:
        first: values that the program had first, by their places' `key_of_any`.
    """
    was = first.setdefault(place.key_of_any, value)
    wanted = values.get(place.key)
    if wanted is None and (wanted := values.get(place.key_of_any)) is not None and value != was:
        return float(wanted) * value / was if place.name == "lr" and was else None
    return None if wanted is None else float(wanted)
