"""placeholder"""

from overdrive.evidence.screening.carry_over import CarryOver, carry_over
from overdrive.evidence.screening.choice import Candidate, Choice, choose
from overdrive.evidence.screening.design import Design
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.estimate import estimate
from overdrive.evidence.screening.factors import Block, Factor, Row, on_in, on_off
from overdrive.evidence.screening.of_processes import Run, estimate_of_processes, mean_of
from overdrive.evidence.screening.prior import USUAL, Prior, learned
from overdrive.evidence.screening.race import Dropped, Verdict, next_look, race

__all__ = [
    "USUAL",
    "Block",
    "Candidate",
    "CarryOver",
    "Choice",
    "Design",
    "Dropped",
    "Effects",
    "Factor",
    "Prior",
    "Row",
    "Run",
    "Verdict",
    "carry_over",
    "choose",
    "estimate",
    "estimate_of_processes",
    "learned",
    "mean_of",
    "next_look",
    "on_in",
    "on_off",
    "race",
]
