"""What a run must have the same to be gone on with: the program, its arguments, and what it computes by."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.core.units import several
from overdrive.core.whose import is_library_file
from overdrive.survive.ours import file_of
from overdrive.version import __version__

_PACKAGES = (
    "torch", "numpy", "torchvision", "transformers", "lightning", "accelerate", "datasets", "keras", "tensorflow",
    "tensorflow-cpu",
)  # fmt: skip
_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONPATH")
_GPUS = "CUDA_VISIBLE_DEVICES"  # a job that is queued again may be given others: only how many they are counts

RANKS = "number of ranks"


def divides_batches(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a technique has ranks that divide nothing else."""
    return name == "data_parallel" and settings.get("shards", "nothing") == "nothing"


def identity_of(program: Program, techniques: Sequence[Chosen] = (), ranks: int = 1) -> dict[str, Any]:
    """As JSON. Ranks that divide batches alone may be more or fewer the next time: each has all of the state."""
    return {
        "program": [*(["-m"] if program.module else []), program.target],
        "arguments": list(program.arguments),
        "folder": os.getcwd(),
        "plan": [[name, dict(settings)] for name, settings in techniques if not divides_batches(name, settings)],
        RANKS: ranks,
        "script": "" if program.module else _digest(Path(program.target)),
        "versions": {"overdrive": __version__, "python": platform.python_version(), **_versions()},
        "environment": _environment(),
    }


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if _GPUS in os.environ:
        found[_GPUS] = several(len(list(filter(str.strip, os.environ[_GPUS].split(",")))), "GPU")
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def modules_of_program(made: Callable[[str], bool]) -> dict[str, str]:
    """The files of its own that it has imported so far, with the sha256 of each.

    Args:
        made: whether such a file is no part of the program, since the run has written it. PyTorch Geometric, say,
            writes and imports one for each layer, in the temporary folder: it may be gone when the run goes on.
    """
    files = [file_of(each) for name, each in list(sys.modules.items()) if name != "__main__"]
    own = (file for file in files if file and os.path.isabs(file) and not is_library_file(file) and not made(file))
    return {file: _digest(Path(file)) for file in own}


def changed_module(modules: dict[str, str]) -> str:
    """The first of these files that is another one now; "" where all are the same."""
    return next((file for file, digest in modules.items() if _digest(Path(file)) != digest), "")


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):  # no such path can be
        return ""
