"""Puts functions of ours in the place of standard ones, and takes them out again."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

from overdrive.core.in_place import InPlace, stands

# Classes that took a copy of os functions when their module was imported, which setting the
# name in `os` does not reach: pathlib up to 3.10, glob from 3.13.
_COPIES = (("pathlib", "_NormalAccessor"), ("glob", "_StringGlobber"))


class Patches:
    """A set of replaced attributes that `undo` puts back as they were."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._functions: dict[int, tuple[Any, Any]] = {}  # those in the place of a module's, by their id; and that one

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute."""
        # As the owner holds it: a class answers with what is inside a staticmethod.
        before = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
        setattr(owner, name, value)
        stands(value, owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        if isinstance(owner, types.ModuleType) and callable(value):
            self._functions[id(value)] = value, before

    def set_os(self, name: str, function: Callable[..., Any]) -> None:
        """Replace a function of `os`, and the copies of it that others hold."""
        original = getattr(os, name)
        # Equal to that one, it is in the lists of what understands `follow_symlinks` and the like, which shutil asks.
        stand_in = InPlace(original, function)
        self.set(os, name, stand_in)
        self.set_copies(name, original, stand_in)

    def set_copies(self, name: str, original: object, stand_in: Callable[..., Any]) -> None:
        """Replace `original` where a class kept it under `name`."""
        for module, kind in _COPIES:
            holder = getattr(sys.modules.get(module), kind, None)
            if holder is not None and getattr(holder, name, None) is original:
                self.set(holder, name, stand_in)

    def undo(self) -> None:
        """Put everything back, last first, also where a module that was imported since has `from os import listdir`."""
        while self._undo:
            self._undo.pop()()
        for module in list(sys.modules.values()):
            names = vars(module) if isinstance(module, types.ModuleType) else {}
            for name, (_, before) in [
                (n, self._functions[id(v)]) for n, v in names.items() if id(v) in self._functions
            ]:
                names[name] = before
