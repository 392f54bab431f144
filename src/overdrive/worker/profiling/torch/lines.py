"""Which line of the user's own code is being run."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from overdrive.core.whose import is_library, is_ours

_FETCH = os.path.join("data", "_utils", "fetch.py")
_METHODS = tuple(os.path.join("torch", name) for name in ("_tensor.py", "_tensor_str.py", "overrides.py"))
_DEEPEST = 200  # frames; a loop of that depth is no training loop


@cache
def is_users(file: str) -> bool:
    """Whether a file is neither Python's, an installed package's nor ours."""
    path = os.path.abspath(file)
    return not (file.startswith("<") or is_library(path) or is_ours(path))


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


def fetched_by(frame: Any = None) -> str:
    """Whose code runs while torch fetches a batch: the "user"'s, that of a "library"'s data set, or "" where torch does
    not fetch: what a loader does besides, drawing the order or taking a worker's batch, is nobody's to edit."""
    frame = frame or sys._getframe(1)
    whose = "library"
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith(_FETCH):
            return whose
        if is_users(frame.f_code.co_filename):
            whose = "user"
        frame = frame.f_back
    return ""


def called_by_user(frame: Any = None) -> bool:
    """Whether the innermost frame is the user's, but for ours and those by which a tensor's methods are called."""
    frame = frame or sys._getframe(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.endswith(_METHODS)):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)
