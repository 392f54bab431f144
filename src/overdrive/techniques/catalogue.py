"""The catalogue: every technique in the families' folders, and those that installed packages bring.

Adding a file adds a technique. A package brings some by the entry-point group `overdrive.techniques`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import ModuleType

from overdrive import techniques
from overdrive.core.settings import Chosen
from overdrive.techniques.technique import Technique

_GROUP = "overdrive.techniques"  # of entry points
_broken: dict[str, str] = {}
_also: list[str] = []  # modules outside the catalogue's folders, in this process only


def also_in(modules: Iterable[str]) -> None:
    """Take in the techniques of these modules too, in this process: for who writes one, and for tests."""
    _also.extend(module for module in modules if module not in _also)
    catalogue.cache_clear()


@cache
def catalogue() -> Mapping[str, Technique]:
    """All techniques by name, in the order in which they are installed."""
    found = [each() for module in (*_modules(), *_also) for each in _techniques_in(importlib.import_module(module))]
    found += _of_packages({technique.name for technique in found})
    found.sort(key=lambda technique: (technique.order, technique.name))
    return {technique.name: technique for technique in found}


def broken() -> Mapping[str, str]:
    """What packages were to bring and could not: the entry point, and the reason."""
    catalogue()
    return _broken


def _techniques_in(module: ModuleType) -> Iterator[type[Technique]]:
    for thing in vars(module).values():
        is_technique = isinstance(thing, type) and issubclass(thing, Technique) and thing is not Technique
        if is_technique and thing.__module__ == module.__name__ and "name" in vars(thing):
            yield thing


def _of_packages(taken: set[str]) -> list[Technique]:
    """Of every entry point: a technique's class, or a module with some. One that fails is left out with its reason."""
    from importlib.metadata import entry_points  # 0.01 s, which a run without a plan does not pay

    found: list[Technique] = []
    _broken.clear()
    for entry in entry_points(group=_GROUP):
        package = entry.dist.name if entry.dist else entry.module
        try:
            thing = entry.load()
            classes = [*_techniques_in(thing)] if isinstance(thing, ModuleType) else [thing]
            if not classes or not all(isinstance(each, type) and issubclass(each, Technique) for each in classes):
                raise TypeError("it is neither a Technique nor a module with some")
            for each in classes:
                if each.name in taken:
                    raise ValueError(f"there is a technique {each.name} already")
                each.package = package
                found.append(each())
                taken.add(each.name)
        except Exception as error:  # another's code, whatever it raises
            _broken[f"{entry.name} from {package}"] = f"{type(error).__name__}: {error}"
    return found


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
    """The environment variables that these techniques need before their process starts; none of one whose variables
    the user has set."""
    needed: dict[str, str] = {}
    for name, settings in chosen:
        technique = catalogue()[name]
        its = technique.environment({**technique.defaults(), **settings})
        if not set_already(technique, its):
            needed.update(its)
    return needed


def set_already(technique: Technique, needed: Mapping[str, str]) -> str | None:
    """The first of these variables that is set, to something else: the user has done that, and it stays."""
    for name, value in needed.items() if not technique.replaces_variables else ():
        present = os.environ.get(name) or value
        # Where more is put behind what is there, that stays, too.
        if present != value and not value.startswith((f"{present}:", f"{present} ")):
            return name
    return None


def ranks_for(chosen: Iterable[Chosen]) -> int:
    """As how many processes the program runs under these techniques."""
    known = ((catalogue()[name], settings) for name, settings in chosen)
    return max((each.ranks({**each.defaults(), **settings}) for each, settings in known), default=1)
