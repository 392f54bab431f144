"""What to type where a library is not there: for the Python that runs, and with names that an index knows.

Nothing of ours is on one, so that `overdrive[serve]` brings nothing.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path

CLONE = Path(__file__).resolve().parents[3]  # where this runs from one


def pip_install(*words: str) -> str:
    """The command, with packages and options of pip's."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def pip_install_extra(extra: str) -> str:
    """The command that brings what an extra of ours asks for: from the clone that this runs from, else by name."""
    if not (CLONE / "pyproject.toml").is_file() and (packages := _asked_by(extra)):
        return pip_install(*packages)
    return pip_install("-e", f"{CLONE}[{extra}]")


def package_of(module: str) -> tuple[str, str]:
    """The package that brings a module, and its version; "" where nobody tells it. Nothing is imported.

    `onnxruntime` may come from `onnxruntime-gpu`, whose record stands under its own name alone.
    """
    for name in _packages_with(module):
        with suppress(Exception):  # there is no record, or it is damaged, which shows in many ways
            if found := version(name):
                return name, found
    return module, str(getattr(sys.modules.get(module), "__version__", ""))


def _packages_with(module: str) -> Iterator[str]:
    yield module
    with suppress(Exception):
        yield from packages_distributions().get(module, [])  # all records are read: where that is needed alone


def _asked_by(extra: str) -> list[str]:
    """As the installed package's metadata has it: `uvicorn>=0.30; extra == "serve"`."""
    try:
        lines = requires("overdrive") or []
    except PackageNotFoundError:  # a copy of the sources alone
        lines = []
    parts = [line.partition(";") for line in lines]
    return [
        package.strip() for package, _, marker in parts if marker.replace("'", '"').strip() == f'extra == "{extra}"'
    ]
