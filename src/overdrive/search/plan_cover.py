"""The speed plan of a search, and which runs its proof covers: that was made with the program's own values.

Numbers that an optimizer multiplies by leave alone which operations run, on what shapes, and how each is rounded, so a
proof of these holds. Another batch, width or depth has other shapes; and that training comes to the same within the
noise of seeds was seen of the program's own values only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from overdrive.core.contract import Contract
from overdrive.core.plan import Plan, PlannedTechnique, PlanRejected
from overdrive.core.settings import Chosen, Value
from overdrive.search import names
from overdrive.search.parameters import Parameter, Values
from overdrive.techniques.catalogue import catalogue

_FACTORS = (names.LR, names.WEIGHT_DECAY, names.MOMENTUM, names.BETA1, names.BETA2)


def planned(path: Path | None) -> Plan | None:
    """What runs are made under; what changes the training itself is the search's own, and left out.

    Raises:
        PlanError: it cannot be read.
    """
    plan = Plan.read(path, catalogue()) if path else None
    return plan and without(plan, {each.name: "" for each in plan.techniques if each.contract is Contract.OPEN})


def chosen_of(plan: Plan | None) -> tuple[Chosen, ...]:
    return tuple((each.name, each.settings) for each in plan.techniques) if plan else ()


def loosest_of(plan: Plan | None) -> Contract | None:
    """The contract that its techniques keep together; None without any."""
    return _loosest(plan.techniques) if plan else None


def without(plan: Plan, reasons: Mapping[str, str]) -> Plan:
    """Less these techniques, the reasons of those that have one kept. What was measured of the whole is of another."""
    kept = tuple(each for each in plan.techniques if each.name not in reasons)
    if kept == plan.techniques:
        return plan
    rejected = (
        PlanRejected(each.name, each.settings, reason)
        for each in plan.techniques
        if (reason := reasons.get(each.name, ""))
    )
    return Plan(
        plan.program,
        _loosest(kept) or Contract.EXACT,
        kept,
        rejected=(*plan.rejected, *rejected),
        machine=plan.machine,
        versions=plan.versions,
        created=plan.created,
        inference=plan.inference,
        removed=plan.removed,
    )


def _loosest(techniques: Sequence[PlannedTechnique]) -> Contract | None:
    return max((each.contract for each in techniques), key=lambda each: each.rank, default=None)


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
    return parameter.meaning == names.ANNEAL or (
        parameter.meaning in _FACTORS and bool(value) == bool(parameter.default)
    )
