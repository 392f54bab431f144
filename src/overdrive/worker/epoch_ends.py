"""Finds the steps before which an epoch came to its end, for what a whole run takes. Runs inside a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overdrive.seams.step_counter import StepCounter

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams


def make_observer() -> EpochEnds:
    return EpochEnds()


class EpochEnds:
    """An observer: it shortens the epochs of training, and reports the numbers of the steps that were first in one.

    The first step of all is not among them. Before the others comes what a program does between two epochs.
    """

    def __init__(self) -> None:
        self._steps = StepCounter()
        self._began: list[int] = []  # steps before each epoch

    def __call__(self, seams: Seams) -> None:
        def arrives() -> None:
            if seams.frameworks[-1] == "torch":
                from overdrive.seams.torch.short_epochs import shorten_training

                shorten_training(lambda: self._steps.steps, self._began.append)

        seams.framework_arrived.subscribe(arrives)
        seams.step_ends.subscribe(self._stepped)

    def _stepped(self, optimizer: Any) -> None:
        self._steps.tick(optimizer)

    def report(self) -> list[int]:
        return [began + 1 for began in self._began if began]
