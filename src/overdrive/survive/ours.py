"""Whose a file or a module is: the program's, a library's, or ours."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from overdrive.core.whose import OURS, is_library_file, is_ours, is_python


def _places(*rooms: str) -> tuple[str, ...]:
    return tuple(os.path.join(OURS, *room.split("/")) for room in rooms)


# By which a question comes here; who asks stands before them.
_WAYS = _places(
    "survive/", "seams/points.py", "seams/torch/asked.py", "seams/torch/scalars.py", "seams/torch/optimizer_state.py"
)
# What asks for itself: not of what the program computed, or what is the same when the run is made again. What only
# watches (`worker`) is told what the program is.
_TECHNIQUES = _places("changes/", "datacache/", "forks/", "kernels/", "model_state/", "ranks/", "techniques/")
_SEAMS = _places("seams/", "core/")
_SANDBOX = _places("sandbox/")
_BESIDE = _places("survive/", "core/", "ranks/")
(_WATCHING,) = _places("worker/")
(_START,) = _places("worker/launch.py")


def is_python_file(path: str) -> bool:
    """Of Python's own library."""
    return path.startswith("<") or is_python(path)


def belongs_to_us(file: str, starter: bool = False) -> bool:
    """`starter`: only the file that starts the program."""
    return file == _START if starter else file == "<overdrive>" or is_ours(file)


@cache
def _is_way(file: str) -> bool:
    return file.startswith(_WAYS)


@cache
def _is_seam(file: str) -> bool:
    return file.startswith(_SEAMS)


def asked_by_technique() -> bool:
    """Whether a question comes from a technique, or a seam that serves one; not from the program or a library."""
    frame: Any = sys._getframe(1)
    while _is_way(file := frame.f_code.co_filename):  # read once: each audit hook of the process is told of it
        frame = frame.f_back
    if not _is_seam(file):
        return bool(file.startswith(_TECHNIQUES))
    while _is_seam(file):
        frame = frame.f_back
        file = frame.f_code.co_filename
    return not file.startswith(_WATCHING)


def by_technique() -> bool:
    """Whether what is done to a file is a technique's doing: its tables outlive the run."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_BESIDE) or is_python_file(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TECHNIQUES)


def is_redirected(thing: Any) -> bool:
    """Whether it stands for a function of Python's for files, while the run is made again."""
    return _file_of(thing).startswith(_SANDBOX)


def is_our_function(thing: Any) -> bool:
    return is_ours(_file_of(thing))


def _file_of(function: Any) -> str:
    """Empty where it is none of Python's."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code.co_filename if code is not None else ""


def file_of(module: Any) -> str | None:
    """Where it comes from. It is not asked: one that is imported as it is used, as those of `six.moves`, would be."""
    found = getattr(module, "__dict__", {}).get("__file__")
    return found if isinstance(found, str) else None


@cache
def belongs_to_library(module: str) -> bool:
    """A module without a file belongs to Python."""
    if module == "__main__":
        return False
    file = file_of(sys.modules.get(module))
    return file is None or not os.path.isabs(file) or is_library_file(file)  # PyTorch has modules that are no files
