"""Whose a file of code is: Python's, an installed package's, ours, or else the program's."""

from __future__ import annotations

import csv
import functools
import os
import sys
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


def is_library_file(path: str) -> bool:
    """The same, of code: also of none that lies in a file, of ours, and of a PyTorch that was built in place."""
    return path.startswith(("<", OURS, _torch())) or is_library(path)


def _torch() -> str:
    """The folder that holds PyTorch, which is no folder of libraries where it was built in place."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return _folder_around(file) if file else OURS  # it may still be imported


@functools.cache
def _folder_around(file: str) -> str:
    return str(Path(file).parents[1]) + os.sep


def is_installed(path: str) -> bool:
    """Whether a file is a library's wherever it lies: `pip install --target` puts packages into any folder."""
    if is_library(path):
        return True
    folders = (os.path.join(os.path.abspath(folder), "") for folder in sys.path)
    return any(path.startswith(folder) and path[len(folder) :] in _written_by_pip(folder) for folder in folders)


@functools.lru_cache
def _written_by_pip(folder: str) -> frozenset[str]:
    """The files that it recorded there, by their paths within the folder."""
    files: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        try:
            with record.open(encoding="utf-8", newline="") as lines:
                files.update(row[0] for row in csv.reader(lines) if row)
        except (OSError, ValueError, csv.Error):  # unreadable: its files are taken to be the program's
            continue
    return frozenset(files)


def is_python(path: str) -> bool:
    """Whether a file belongs to Python's own library."""
    return path.startswith(_PYTHON) and "/site-packages/" not in path


def is_ours(path: str) -> bool:
    """Whether a file belongs to Overdrive."""
    return path.startswith(OURS)
