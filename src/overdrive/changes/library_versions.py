"""Which library a module belongs to, as text: its version, and what is installed under that.

A version alone does not say which code it is: a project of the user's own that is installed (`pip install .`), and one
that comes from its repository, go on for months under one version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path

# Of a package that no record of an installation names, so many files of Python's are read: 10 ms. Those that have more
# are released under versions.
_MOST_READ = 300


def version_of(name: str) -> str:
    """A library module as text: its package and version."""
    return f"{name} {_version(name.split('.')[0])}"


@cache
def _version(top: str) -> str:
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return sys.version
    return f"{_number(top)} {_recorded(top) or _read(top)}" if top else "none"


def _number(top: str) -> str:
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(top)
    return "none"


def _recorded(top: str) -> str:
    """A hash of the hashes that its installer wrote down, of PyTorch's 12,000 files in 15 ms; nothing where there are
    none.

    Of the package's own files alone: scripts beside it name the folder of their Python.
    """
    try:
        record = metadata.distribution(top).read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return ""
    lines = re.findall(rf"^{re.escape(top)}[./].*,\w+=.*$", record, re.MULTILINE)
    return _hash("\n".join(sorted(lines)).encode()) if lines else ""


def _read(top: str) -> str:
    """A hash of its files of Python's; nothing where they are many, or cannot be read."""
    file = getattr(sys.modules.get(top), "__file__", None)
    if not isinstance(file, str):
        return ""
    folder, name = os.path.split(file)
    alone = not name.startswith("__init__.")
    paths = [Path(file)] if alone else list(islice(Path(folder).rglob("*.py"), _MOST_READ + 1))
    if len(paths) > _MOST_READ:
        return ""
    try:
        parts = [os.fsencode(path.relative_to(folder)) + b"\0" + path.read_bytes() for path in sorted(paths)]
    except OSError:
        return ""
    return _hash(b"\0".join(parts))


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
