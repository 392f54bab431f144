"""Answers the program's `import horovod.torch` where no Horovod is installed. Imports no framework."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from overdrive.ranks.asking import asked_by_program

_LIKE = "0.28.1"  # the last Horovod there was: whose interface this is
_IMPORTS = (
    "importlib._bootstrap>",
    "importlib._bootstrap_external>",
    "importlib/__init__.py",
    "importlib/util.py",
    "importlib.util>",
)
_PLACE = "overdrive.ranks.horovod"
# By name, where what is in them comes from; "" for packages that have nothing of their own.
_MODULES = {
    "horovod": "",
    "horovod.common": "",
    "horovod.common.exceptions": "errors",
    "horovod.torch": "interface",
    "horovod.torch.compression": "compression",
    "horovod.torch.elastic": "elastic",
    "horovod.torch.elastic.sampler": "elastic",
    "horovod.torch.elastic.state": "elastic",
    "horovod.torch.functions": "objects",
    "horovod.torch.mpi_ops": "mpi_ops",
    "horovod.torch.optimizer": "optimizer",
    "horovod.torch.sync_batch_norm": "norm",
}


def installed() -> bool:
    """Whether there is a real Horovod: not a folder of that name with a program's scripts, which Python takes for a
    package without a file of its own."""
    found = PathFinder.find_spec("horovod")
    return found is not None and found.origin is not None


class HorovodImports(MetaPathFinder):
    """Only the program's own code is answered: libraries that look whether Horovod is there do as without it."""

    def provide(self, before_installed: bool = False) -> None:
        """From here on, in this process.

        Args:
            before_installed: whatever is installed; else only where there is none.
        """
        self._forced = before_installed
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "horovod":
            return None
        if fullname == "horovod":
            if not asked_by_program(sys._getframe(1), _IMPORTS) or (installed() and not self._forced):
                return None
        elif not _is_ours(sys.modules.get("horovod")):
            return None
        if fullname not in _MODULES:
            said = "Overdrive stands in for horovod.torch only; where Horovod is installed, horovodrun starts its ranks"
            raise ModuleNotFoundError(f"No module named '{fullname}': {said}", name=fullname)
        package = any(name.startswith(f"{fullname}.") for name in _MODULES)
        return ModuleSpec(fullname, _Loading(), is_package=package)


class _Loading(Loader):
    def exec_module(self, module: ModuleType) -> None:
        place = _MODULES[module.__name__]
        if place:
            source = importlib.import_module(f"{_PLACE}.{place}")
            module.__dict__.update({name: getattr(source, name) for name in source.__all__})
        module.__dict__["__version__"] = _LIKE


def _is_ours(module: ModuleType | None) -> bool:
    return isinstance(getattr(module, "__loader__", None), _Loading)
