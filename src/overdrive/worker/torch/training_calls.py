"""How often a program calls its models in training: what a step is made of where it has no batch of a data set."""

from __future__ import annotations

from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.torch.next_call import records_gradients


class TrainingCalls:
    """Counts outermost calls of models that record gradients, as they begin: the program's own, whatever then acts."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, seams: Seams) -> None:
        seams.model_begins.subscribe(self._begins)

    def _begins(self, module: Any) -> None:
        self.made += module.training and records_gradients(module)
