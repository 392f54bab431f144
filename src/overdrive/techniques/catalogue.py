"""The catalogue: every technique file found in the families' folders. Adding a file adds a technique."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from overdrive import techniques
from overdrive.techniques.technique import Technique


@cache
def catalogue() -> Mapping[str, Technique]:
    """All techniques by name, in the order in which they are installed."""
    found: list[Technique] = []
    for module in pkgutil.walk_packages(techniques.__path__, techniques.__name__ + "."):
        if module.ispkg:
            continue
        for thing in vars(importlib.import_module(module.name)).values():
            is_technique = isinstance(thing, type) and issubclass(thing, Technique) and thing is not Technique
            if is_technique and thing.__module__ == module.name:
                found.append(thing())
    found.sort(key=lambda technique: (technique.order, technique.name))
    return {technique.name: technique for technique in found}
