"""Which files a program reads its settings from, and its own modules that it imports: what it is beside its script."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from overdrive.core.whose import is_installed, is_ours

_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".gin", ".py")
_MOST = 2000


class ReadFiles:
    """Of a short trial: Python asks its audit hooks at every file that is opened, and forgets none of them."""

    def __init__(self) -> None:
        self._opened: dict[str, None] = {}
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or len(self._opened) >= _MOST:
            return
        path, _, flags = arguments
        if isinstance(path, str) and path.endswith(_SETTINGS) and not flags & (os.O_WRONLY | os.O_RDWR):
            with contextlib.suppress(OSError):  # the current folder is gone
                self._opened[os.path.abspath(path)] = None

    def paths(self) -> tuple[str, ...]:
        """Without those of libraries, of Overdrive and in hidden folders, where caches are."""
        imported = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        modules = [os.path.abspath(file) for file in imported if isinstance(file, str)]
        every = sorted({*self._opened, *modules})
        return tuple(path for path in every if not (is_installed(path) or is_ours(path) or "/." in path))[:_MOST]
