"""All specimens, and at which levels they must be caught or let pass."""

from __future__ import annotations

from collections.abc import Sequence

import tests.zoo.harness  # noqa: F401  the catalogue takes the zoo in
from overdrive.contract import Contract
from overdrive.techniques.catalogue import catalogue
from tests.zoo.specimen import Specimen

LEVELS = (Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL)
Cases = list[tuple[type[Specimen], Contract]]

_ALL = [type(each) for each in catalogue().values() if isinstance(each, Specimen)]
DEFECTS = [each for each in _ALL if ".defects." in each.__module__]
HARMLESS = [each for each in _ALL if ".harmless" in each.__module__]


def must_catch(kinds: Sequence[type[Specimen]]) -> Cases:
    return [(kind, level) for level in LEVELS for kind in kinds if level.rank <= kind.contract.rank]


def must_pass(kinds: Sequence[type[Specimen]]) -> Cases:
    return [(kind, level) for level in LEVELS for kind in kinds if level.rank >= kind.contract.rank]
