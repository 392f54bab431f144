"""Sympy, imported in the middle of a program's training, has no warning shown twice.

The compiler imports sympy, and without us each program imports the compiler with its first optimizer; `late_compiler`
puts that off. Some of PyTorch needs sympy by itself, such as the backward pass of a checkpoint. Sympy adds a filter of
warnings, after which Python forgets what it has shown, and would show each warning of the training loop once more.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from overdrive.seams.arrival import Arrival

_NAME = "sympy"


def keep_shown() -> Callable[[], None]:
    """Until what it returns is called."""
    if _NAME in sys.modules:
        return lambda: None
    arrival = _LateSympy()
    arrival.watch()
    return arrival.stop


class _LateSympy(Arrival):
    _before: Any = None

    def __init__(self) -> None:
        super().__init__(_NAME, self._mark)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        if spec is not None:
            self._before = _filters_version()
        return spec

    def _mark(self) -> None:
        """What was shown before it was imported, as shown now."""
        now = _filters_version()
        for module in list(sys.modules.values()):
            shown = getattr(module, "__dict__", {}).get("__warningregistry__")
            if isinstance(shown, dict) and shown.get("version") == self._before:
                shown["version"] = now


def _filters_version() -> Any:
    """What Python writes beside the warnings that it has shown, to know by it when filters have changed since."""
    beside: dict[Any, Any] = {}
    show, warnings.showwarning = warnings.showwarning, lambda *_, **__: None
    try:
        with suppress(Warning):  # where warnings are errors
            warnings.warn_explicit("", Warning, __file__, 1, registry=beside)
    finally:
        warnings.showwarning = show
    return beside.get("version")
