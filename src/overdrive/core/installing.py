"""What to type where a library is not there: for the Python that runs, and with names that an index knows.

Nothing of ours is on one, so that `overdrive[serve]` brings nothing.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
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
