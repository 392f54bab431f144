"""All specimens, and at which levels they must be caught or let pass."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from overdrive.core.contract import Contract
from tests.zoo.harness import MODULES
from tests.zoo.specimen import Specimen

LEVELS = (Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL)
Cases = list[tuple[type[Specimen], Contract]]

_ALL = sorted(
    (
        each
        for module in map(importlib.import_module, MODULES)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Specimen) and each.__module__ == module.__name__
        if "name" in vars(each)
    ),
    key=lambda each: each.name,
)
DEFECTS = [each for each in _ALL if ".defects." in each.__module__]
HARMLESS = [each for each in _ALL if ".harmless" in each.__module__]


def must_catch(kinds: Sequence[type[Specimen]]) -> Cases:
    return [(kind, level) for level in LEVELS for kind in kinds if level.rank <= kind.contract.rank]


def must_pass(kinds: Sequence[type[Specimen]]) -> Cases:
    return [(kind, level) for level in LEVELS for kind in kinds if level.rank >= kind.contract.rank]
