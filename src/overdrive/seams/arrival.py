"""Tells when the program imports a framework, so that Overdrive never has to import it first.

`overdrive run` on a script without torch must not pay for torch; and a technique must be in place
before the script's first use of the framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from overdrive.core.flag import Flag


class Arrival(MetaPathFinder):
    """Calls `arrived` right after the top-level module `name` has been imported, once."""

    def __init__(self, name: str, arrived: Callable[[], None]) -> None:
        self._name = name
        self._arrived = arrived
        self._looking = Flag()
        self._waits = True

    def watch(self) -> None:
        """Call at once where the module is there already, else wait for its import."""
        if self._name in sys.modules:
            self._arrived()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self._waits = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._looking:
            return None
        with self._looking:  # find_spec comes back here
            spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _call_after_execution(spec.loader, self)
        return spec

    def finished(self) -> None:
        """Once, though a loader that serves several specs was wrapped at each look at whether the module is there."""
        if self._waits:
            self.stop()
            self._arrived()


def _call_after_execution(loader: Loader, arrival: Arrival) -> None:
    """Wrap this one loader instance's exec_module, for one import."""
    execute = loader.exec_module
    wrapped = vars(loader).get("exec_module")  # by another one that waits for the same module

    def exec_module(module: ModuleType) -> None:
        if wrapped is None:
            del loader.exec_module  # the class's own method shows again
        else:
            loader.exec_module = wrapped  # type: ignore[method-assign]
        execute(module)
        arrival.finished()

    loader.exec_module = exec_module  # type: ignore[method-assign]
