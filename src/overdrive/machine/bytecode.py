"""Whether the frameworks' modules are compiled anew at every start of Python."""

from __future__ import annotations

import importlib.util
import os
import sys

_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")


def lacks_bytecode(for_good: bool = False) -> tuple[str, ...]:
    """Those of the installed frameworks of which Python finds no bytecode; none of them is imported.

    Images for containers are often made so (PYTHONDONTWRITEBYTECODE=1, or installed by uv). On two cores
    `import torch, torchvision` took 9.7 s in place of 4.0.

    Args:
        for_good: only those of which it will not keep any either.
    """
    return tuple(name for name in _FRAMEWORKS if _lacks(name, for_good))


def _lacks(framework: str, for_good: bool) -> bool:
    try:
        found = importlib.util.find_spec(framework)
        if found is None or found.origin is None:
            return False
        if os.path.exists(importlib.util.cache_from_source(found.origin)):
            return False
    except (ImportError, ValueError, NotImplementedError):  # half installed, stubbed, or without bytecode at all
        return False
    keeps = not sys.dont_write_bytecode and os.access(sys.pycache_prefix or os.path.dirname(found.origin), os.W_OK)
    return not (for_good and keeps)
