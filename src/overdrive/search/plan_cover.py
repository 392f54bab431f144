"""The speed plan of a search, and which runs its proof covers: that was made with the program's own values.

Numbers that an optimizer multiplies by leave alone which operations run, on what shapes, and how each is rounded, so a
proof of these holds. Another batch, width or depth has other shapes; and that training comes to the same within the
noise of seeds was seen of the program's own values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from overdrive.core.contract import Contract
from overdrive.core.plan import Plan, PlannedTechnique
from overdrive.core.settings import Chosen, Value
from overdrive.search import names
from overdrive.search.parameters import Parameter, Values
from overdrive.techniques.catalogue import catalogue

_FACTORS = (names.LR, names.WEIGHT_DECAY, names.MOMENTUM, names.BETA1, names.BETA2)


def planned(plan: Path | None) -> list[PlannedTechnique]:
    """Of the plan; what changes the training itself is the search's own."""
    found = Plan.read(plan, catalogue()).techniques if plan else ()
    return [each for each in found if each.contract is not Contract.OPEN]


def chosen_of(planned: Sequence[PlannedTechnique]) -> tuple[Chosen, ...]:
    return tuple((each.name, each.settings) for each in planned)


def loosest_of(planned: Sequence[PlannedTechnique]) -> Contract | None:
    """The contract that the plan keeps as a whole; None without a plan."""
    return max((each.contract for each in planned), key=lambda each: each.rank, default=None)


def outside(parameters: Sequence[Parameter], values: Values, loosest: Contract | None) -> tuple[str, ...]:
    """Parameters whose value the proof does not cover.

    Args:
        loosest: the contract of the plan as a whole; None where there is no plan.
    """
    if loosest is None:
        return ()
    moved = [each for each in parameters if each.name in values and values[each.name] != each.default]
    if loosest.rank > Contract.ROUNDING.rank:
        return tuple(each.name for each in moved)
    return tuple(each.name for each in moved if not _is_factor(each, values[each.name]))


def _is_factor(parameter: Parameter, value: Value) -> bool:
    """A number and another one; with none of it (no momentum, no weight decay) an optimizer leaves operations out."""
    return parameter.meaning in _FACTORS and bool(value) == bool(parameter.default)
