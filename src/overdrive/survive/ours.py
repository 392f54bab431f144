"""Whose a file or a module is: the program's, a library's, or ours."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

_US = str(Path(__file__).parents[1]) + os.sep
_START = os.path.join(_US, "worker", "launch.py")
_PATHS = sysconfig.get_paths()


@cache
def _libraries() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    folders = {_US, _PATHS["stdlib"] + os.sep, _PATHS["purelib"] + os.sep, _PATHS["platlib"] + os.sep}
    if torch is not None and torch.__file__:
        folders.add(str(Path(torch.__file__).parents[1]) + os.sep)
    return tuple(folders)


def is_library_file(path: str) -> bool:
    return path.startswith(("<", *_libraries())) or "/site-packages/" in path or "/dist-packages/" in path


def is_python_file(path: str) -> bool:
    """Of Python's own library."""
    return path.startswith(("<", _PATHS["stdlib"] + os.sep)) and "/site-packages/" not in path


def belongs_to_us(file: str, starter: bool = False) -> bool:
    """`starter`: only the file that starts the program."""
    return file == _START if starter else file.startswith((_US, "<overdrive>"))


@cache
def belongs_to_library(module: str) -> bool:
    """A module without a file belongs to Python."""
    if module == "__main__":
        return False
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    return file is None or not os.path.isabs(file) or is_library_file(file)  # PyTorch has modules that are no files
