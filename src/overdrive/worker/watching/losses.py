"""Watches whether the losses that a program sends backward are finite. Told once; the run goes on or ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from overdrive.seams import frameworks
from overdrive.seams.frameworks import LossValues
from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER

LOST = 65  # exit code of a run that is ended for its loss, as EX_DATAERR of sysexits.h
OWNER = f"{OBSERVER} of losses"
_EVERY = 16  # losses of a GPU, where nobody asked


class LossLost(SystemExit):
    """Ends the program as `sys.exit` would, called in the optimizer's step: its `finally` and `atexit` are run."""


class LossWatch:
    """An observer for `Session`. Costs 3 us a loss.

    Attributes:
        stopped: the run is to end for it.
    """

    def __init__(self, action: str | None, steps: Callable[[], int], say: Callable[[str], None]) -> None:
        """
        Args:
            action: "stop", "snapshot" or "go-on"; None where nobody asked, which goes on and looks at fewer.
            steps: complete ones so far.
        """
        self._action, self._steps, self._say = action, steps, say
        self.take_snapshot: Callable[[], None] = lambda: None
        self.stopped = False
        self._values: LossValues | None = None
        self._process = os.getpid()

    def __call__(self, seams: Seams) -> None:
        with seams.owned_by(OWNER):
            seams.framework_arrived.subscribe(lambda: self._arrived(seams))
            seams.loss_backward.subscribe(self._sent_backward)
            if self._action == "stop":
                seams.step_ends.subscribe(self._stop)

    def _arrived(self, seams: Seams) -> None:
        every = _EVERY if self._action is None else 1
        self._values = frameworks.seams_of(seams.frameworks[-1]).make_loss_values(every) or self._values

    def _sent_backward(self, loss: Any) -> Any:
        if self._values is not None:
            found = self._values.noted(loss, self._steps() + 1)
            if found and os.getpid() == self._process:  # else a copy of this process, or a program of its own
                self._values = None
                self._tell(*found)
        elif self.stopped:
            self._stop()  # a scaler of losses has left out the optimizer's step
        return loss

    def _tell(self, step: int, value: float) -> None:
        told = f"the loss of step {step:,} is {value}"
        if self._action == "stop":
            self.stopped = True
            self._say(f"{told}: the run ends here (--on-nan stop)")
        elif self._action == "snapshot":
            self._say(f"{told}; a snapshot is taken after this step, and the run goes on")
            self.take_snapshot()
        else:
            self._say(f"{told}; the run goes on, and this is told once (--on-nan stop ends it)")

    def _stop(self, *_: object) -> None:
        if self.stopped and os.getpid() == self._process:
            raise LossLost(LOST)
