"""Seam *file opened*: the program, or a library of it, opens a file for reading with Python's own `open`.

Only `open(PATH, "rb")` is answered, which is how pictures and arrays are opened; everything else, and
what libraries open in C, goes on to the real function. In place from installation on, whatever the
framework.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = Callable[[Any], Any]


def answer_opens(answer: Answer) -> Callable[[], None]:
    """Ask `answer(path)` first, path as it was given; None means the real file. Returns what undoes it."""
    real = builtins.open
    answering = [answer]

    @functools.wraps(real)
    def open(*args: Any, **kwargs: Any) -> Any:
        answered = None
        with contextlib.suppress(Exception):  # ours: the real function will do, or raise as it does
            if answering and _reads_bytes(args, kwargs):
                answered = answering[0](args[0])
        return real(*args, **kwargs) if answered is None else answered

    holders = _holders(real)
    before = [(holder, vars(holder)["open"]) for holder in holders]
    for holder in holders:
        holder.open = staticmethod(open) if isinstance(holder, type) else open

    def undo() -> None:
        answering.clear()  # for whoever took a copy of our function meanwhile
        for holder, was in before:
            if getattr(holder, "open", None) is open:
                holder.open = was

    return undo


# What may follow path and mode and mean the same as nothing; pathlib gives the first four.
_DEFAULTS = (-1, None, None, None, True, None)


def _reads_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if len(args) >= 2 and not kwargs:
        mode = args[1]
    elif len(args) == 1 and len(kwargs) == 1 and "mode" in kwargs:
        mode = kwargs["mode"]
    else:
        return False
    if mode not in ("rb", "br") or not isinstance(args[0], (str, bytes, os.PathLike)):
        return False
    return len(args) == 2 or (len(args) <= 8 and args[2:] == _DEFAULTS[: len(args) - 2])


def _holders(real: Any) -> list[Any]:
    """Where the function stands; pathlib took a copy up to Python 3.10."""
    copies = [getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)]
    return [builtins, io, *(each for each in copies if each is not None and getattr(each, "open", None) is real)]
