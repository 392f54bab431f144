"""Whose a file of code is: Python's, an installed package's, ours, or else the program's."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

OURS = str(Path(__file__).parents[1]) + os.sep  # the whole package


def _folders(*names: str) -> tuple[str, ...]:
    given = [sysconfig.get_path(name) for name in names]
    return tuple({path + os.sep for folder in given for path in (folder, os.path.realpath(folder))})


_PYTHON = _folders("stdlib", "platstdlib")
_LIBRARIES = (*_PYTHON, *_folders("purelib", "platlib"))


def is_library(path: str) -> bool:
    """Whether a file belongs to Python or an installed package."""
    return path.startswith(_LIBRARIES) or "/site-packages/" in path or "/dist-packages/" in path


def is_python(path: str) -> bool:
    """Whether a file belongs to Python's own library."""
    return path.startswith(_PYTHON) and "/site-packages/" not in path


def is_ours(path: str) -> bool:
    """Whether a file belongs to Overdrive."""
    return path.startswith(OURS)
