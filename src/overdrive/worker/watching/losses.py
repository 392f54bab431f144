"""Watches the losses that a program sends backward: whether they are finite and, where asked, whether they leap."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from overdrive.seams import frameworks
from overdrive.seams.frameworks import LossValues
from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER
from overdrive.seams.scaled_losses import ScaledLosses
from overdrive.worker.watching.spikes import Spike, Spikes

LOST = 65  # exit code of a run that is ended for its loss, as EX_DATAERR of sysexits.h
OWNER = f"{OBSERVER} of losses"
_EVERY = 16  # losses of a GPU, where nobody asked
_MOST_PLACES = 64  # in a step: one that accumulates over more, or makes no step at all, begins anew with the first
_APART = 3  # steps, within which losses of several places leap with each other


class LossLost(SystemExit):
    """Ends the program as `sys.exit` would, called in the optimizer's step: its `finally` and `atexit` are run."""


class LossWatch:
    """An observer for `Session`. Costs 3 us a loss; 40 us where leaps are looked for.

    Attributes:
        take_snapshot: after the step that is under way.
        made_again: whether what was done is skipped now, and losses are zeros.
        stopped: the run is to end for it.
    """

    def __init__(
        self, action: str | None, steps: Callable[[], int], say: Callable[[str], None], on_spike: str | None = None
    ) -> None:
        """
        Args:
            action: "stop", "snapshot" or "go-on"; None where nobody asked, which goes on and looks at fewer.
            steps: complete ones so far.
            on_spike: the same where losses leap; None where they are not looked at for that.
        """
        self._action, self._steps, self._say = action, steps, say
        self._on_spike = on_spike
        self._spikes: list[Spikes] = []  # by the place of a loss among those of its step
        self._step, self._place = 0, 0
        self._leapt = -_APART - 1  # the step of the last leap that was told
        self._scaled: ScaledLosses | None = None
        self.take_snapshot: Callable[[], None] = lambda: None
        self.made_again: Callable[[], bool] = lambda: False
        self.stopped = False
        self._values: LossValues | None = None
        self._process = os.getpid()

    def __call__(self, seams: Seams) -> None:
        with seams.owned_by(OWNER):
            seams.framework_arrived.subscribe(lambda: self._arrived(seams))
            seams.loss_backward.subscribe(self._sent_backward)
            if self._on_spike:
                self._scaled = ScaledLosses(seams)
            if "stop" in (self._action, self._on_spike):
                seams.step_ends.subscribe(self._stop)

    def _arrived(self, seams: Seams) -> None:
        every = _EVERY if self._action is None and self._on_spike is None else 1
        heard = self._heard if self._on_spike else None
        self._values = frameworks.seams_of(seams.frameworks[-1]).make_loss_values(every, heard) or self._values

    def _sent_backward(self, loss: Any) -> Any:
        if self._values is not None:
            found = self._values.noted(self._scaled.plain(loss) if self._scaled else loss, self._steps)
            if found and os.getpid() == self._process:  # else a copy of this process, or a program of its own
                self._values = None
                self._tell(*found)
        elif self.stopped:
            self._stop()  # a scaler of losses has left out the optimizer's step
        return loss

    def _heard(self, step: int, value: float) -> None:
        """In the order in which they were sent."""
        if self.made_again():
            return
        self._place = (self._place + 1) % _MOST_PLACES if step == self._step else 0
        self._step = step
        if self._place == len(self._spikes):
            self._spikes.append(Spikes())
        spike = self._spikes[self._place].look(step, value)
        if spike and spike.step - self._leapt > _APART and os.getpid() == self._process:
            self._leapt = spike.step
            self._tell_of(spike)

    def _tell(self, step: int, value: float) -> None:
        self._act(self._action, f"the loss of step {step:,} is {value}", "--on-nan")

    def _tell_of(self, spike: Spike) -> None:
        told = f"the loss leaps from {spike.usual:.4g} to {spike.value:.4g} at step {spike.step:,}, and stays there"
        self._act(self._on_spike, told, "--on-spike")

    def _act(self, action: str | None, told: str, option: str) -> None:
        if action == "stop":
            self.stopped = True
            self._say(f"{told}: the run ends here ({option} stop)")
        elif action == "snapshot":
            self._say(f"{told}; a snapshot is taken after this step, and the run goes on")
            self.take_snapshot()
        else:
            once = "this is told once" if option == "--on-nan" else "this is told of each leap"
            self._say(f"{told}; the run goes on, and {once} ({option} stop ends it)")

    def _stop(self, *_: object) -> None:
        if self.stopped and os.getpid() == self._process:
            raise LossLost(LOST)
