"""Seam of the constants in modules that the program imports and that are its own: a `config.py` beside the script.

Found and set as the module is compiled, from its source and never from a cache; no file is touched.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from overdrive.core.hyperparameters import CONSTANT, IMPORTED, WORD, ValuePlace
from overdrive.core.settings import Value
from overdrive.core.whose import is_installed, is_ours
from overdrive.seams import constants
from overdrive.seams.patch import Patches

Heard = Callable[[list[ValuePlace]], None]


class ImportedConstants:
    """Those of the modules that were imported so far."""

    def __init__(self, values: Mapping[str, Value], heard: Heard) -> None:
        """`values`: what to set, by the places' keys."""
        self._values, self._heard = values, heard
        self._modules: dict[str, str] = {}  # by a place's key, the module that it stands in

    def enter(self) -> Callable[[], None]:
        """Have `heard` called with the constants of each module; returns what takes the patch away."""
        patches = Patches()
        get_code = SourceFileLoader.get_code

        @functools.wraps(get_code)
        def from_source(loader: Any, fullname: str) -> CodeType | None:
            path = str(loader.path)
            if fullname == "__main__" or is_installed(path) or is_ours(path):
                return get_code(loader, fullname)
            try:
                return self._compiled(loader.get_data(path), path, fullname)
            except Exception:  # not ours to tell: Python says what is wrong with it
                return get_code(loader, fullname)

        patches.replace(SourceFileLoader, "get_code", from_source)
        return patches.restore

    def _compiled(self, source: bytes, path: str, fullname: str) -> CodeType:
        code, places = constants.compiled(source, path, self._values, IMPORTED, os.path.relpath(path, sys.path[0]))
        self._modules.update((place.key, fullname) for place in places)
        self._heard(places)
        return code

    def still(self, place: ValuePlace) -> bool:
        """Whether it has by now the value that it was given: what sets it anew decides, and not the constant."""
        return has_still(sys.modules.get(self._modules.get(place.key, "")), place, self._values)


def has_still(module: Any, place: ValuePlace, values: Mapping[str, Value]) -> bool:
    """Of the module that it stands in. What has a part of its name in a table or a class is taken to be as it was."""
    if "." in place.name or module is None:
        return True
    try:
        return bool(vars(module).get(place.name, place.value) == values.get(place.key, place.value))
    except Exception:  # of an array each number is compared by itself: no one answer
        return False


def as_word(module: Any, place: ValuePlace, values: Mapping[str, Value]) -> ValuePlace | None:
    """A constant that something else has set since, as a word of the command line, with the value that it has now.

    A program that executes a configuration file may read such words, too. Whether it does, a trial tells.
    """
    if place.kind != CONSTANT or has_still(module, place, values):
        return None
    now = vars(module)[place.name]
    plain = type(now) is type(place.value) and not isinstance(now, bool)
    return ValuePlace(WORD, f"--{place.name}", now) if plain else None
