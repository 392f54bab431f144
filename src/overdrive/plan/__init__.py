"""A plan: the techniques to apply, with their settings and the evidence for each, as one TOML file."""

from overdrive.plan.plan import Plan, PlannedTechnique, Rejected
from overdrive.plan.table import PlanError

__all__ = ["Plan", "PlanError", "PlannedTechnique", "Rejected"]
