"""Which line of the user's own code is being run."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from overdrive.samples.files import is_library

_OURS = str(Path(__file__).resolve().parents[3]) + os.sep
_FETCH = os.path.join("data", "_utils", "fetch.py")
_DEEPEST = 200  # frames; a loop of that depth is no training loop


@cache
def is_users(file: str) -> bool:
    """Whether a file is neither Python's, an installed package's nor ours."""
    path = os.path.abspath(file)
    return not (file.startswith("<") or is_library(path) or os.path.realpath(path).startswith(_OURS))


def user_line(frame: Any = None) -> tuple[str, int, str]:
    """File, line and function of the innermost frame that is the user's; ("", 0, "") where there is none."""
    frame = frame or sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        if is_users(code.co_filename):
            return os.path.abspath(code.co_filename), frame.f_lineno, code.co_name
        frame = frame.f_back
    return "", 0, ""


def fetched_by_library(frame: Any = None) -> bool:
    """Whether torch's fetching of a batch lies between here and the user's code: what runs is a library's data set."""
    frame = frame or sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None or is_users(frame.f_code.co_filename):
            return False
        if frame.f_code.co_filename.endswith(_FETCH):
            return True
        frame = frame.f_back
    return False
