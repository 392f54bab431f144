"""The catalogue: every technique found in the families' folders. Adding a file adds a technique."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from overdrive import techniques
from overdrive.core.settings import Chosen
from overdrive.techniques.technique import Technique

_also: list[str] = []  # modules outside the catalogue's folders, in this process only


def also_in(modules: Iterable[str]) -> None:
    """Take in the techniques of these modules too, in this process: for who writes one, and for tests."""
    _also.extend(module for module in modules if module not in _also)
    catalogue.cache_clear()


@cache
def catalogue() -> Mapping[str, Technique]:
    """All techniques by name, in the order in which they are installed."""
    found: list[Technique] = []
    for module in (*_modules(), *_also):
        for thing in vars(importlib.import_module(module)).values():
            is_technique = isinstance(thing, type) and issubclass(thing, Technique) and thing is not Technique
            if is_technique and thing.__module__ == module and "name" in vars(thing):
                found.append(thing())
    found.sort(key=lambda technique: (technique.order, technique.name))
    return {technique.name: technique for technique in found}


def _modules() -> Iterator[str]:
    """A technique is a file in its family's folder, or a folder there whose file `technique` it is."""
    for family in pkgutil.iter_modules(techniques.__path__, techniques.__name__ + "."):
        if family.ispkg:
            for each in pkgutil.iter_modules(importlib.import_module(family.name).__path__, family.name + "."):
                yield f"{each.name}.technique" if each.ispkg else each.name


def conflict(name: str, others: Iterable[str]) -> str | None:
    """The first of `others` that cannot be in one plan with the technique `name`, whichever side declares it."""
    known = catalogue()
    for other in others:
        if other in known[name].conflicts or name in known[other].conflicts:
            return other
    return None


def environment_for(chosen: Iterable[Chosen]) -> dict[str, str]:
    """The environment variables that these techniques need before their process starts."""
    needed: dict[str, str] = {}
    for name, settings in chosen:
        technique = catalogue()[name]
        needed.update(technique.environment({**technique.defaults(), **settings}))
    return needed
