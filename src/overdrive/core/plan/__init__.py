"""A plan: the techniques to apply, with their settings and the evidence for each, as one TOML file."""

from overdrive.core.plan.plan import Plan, PlannedTechnique, PlanRejected
from overdrive.core.plan.removed import REMOVED
from overdrive.core.plan.table import PlanError

__all__ = ["REMOVED", "Plan", "PlanError", "PlanRejected", "PlannedTechnique"]
