"""Seam of a program's environment: which numbers its own lines ask it for, `int(os.environ.get("BATCH_SIZE", 64))`.

Another value is set in the environment itself, before the program starts.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from dis import opname
from typing import Any

from overdrive.core.hyperparameters import ENVIRONMENT, ValuePlace
from overdrive.core.settings import Value
from overdrive.core.whose import is_library, is_ours
from overdrive.seams.patch import Patches

Heard = Callable[[list[ValuePlace]], None]
_SUBSCRIPT = ("BINARY_SUBSCR", "BINARY_OP")  # the second from Python 3.14 on
_WHOLE = re.compile(r"[-+]?\d{1,15}")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def set_in_environment(values: Mapping[str, Value]) -> None:
    """`values`: by their places' keys; those of other kinds stay where they are."""
    for key, value in values.items():
        kind, _, name, _ = key.split("|", 3)
        if kind == ENVIRONMENT:
            os.environ[name] = str(value)


def enter(heard: Heard) -> Callable[[], None]:
    """Have `heard` called with each number that the program asks its environment for; returns what ends that."""
    patches = Patches()
    kind = type(os.environ)
    ask, take = kind.get, kind.__getitem__

    @functools.wraps(ask)
    def get(self: Any, name: Any, default: Any = None) -> Any:
        given = ask(self, name, default)
        _tell(self, name, given, heard)
        return given

    @functools.wraps(take)
    def getitem(self: Any, name: Any) -> Any:
        given = take(self, name)
        caller = sys._getframe(1)
        if opname[caller.f_code.co_code[caller.f_lasti]] in _SUBSCRIPT:  # else all is copied: `dict(os.environ)`
            _tell(self, name, given, heard)
        return given

    patches.replace(kind, "get", get)
    patches.replace(kind, "__getitem__", getitem)
    return patches.restore


def _tell(asked: Any, name: Any, given: Any, heard: Heard) -> None:
    if asked is not os.environ or not isinstance(name, str) or (value := _number(given)) is None:
        return
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", __name__):
        frame = frame.f_back
    file = frame.f_code.co_filename
    if not (is_library(file) or is_ours(file) or file.startswith("<")):
        heard([ValuePlace(ENVIRONMENT, name, value)])


def _number(given: Any) -> Value | None:
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return given
    if not isinstance(given, str) or not _NUMBER.fullmatch(given.strip()):
        return None
    return int(given) if _WHOLE.fullmatch(given.strip()) else float(given)
