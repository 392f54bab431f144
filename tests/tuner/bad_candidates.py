"""Candidates that harm the process that they are on in, for `test_bad_candidates.py`."""

from __future__ import annotations

import sys
import time
from typing import ClassVar

from overdrive.core.contract import Contract
from overdrive.seams.hub import Handle, Seams
from overdrive.techniques.technique import Settings, Technique

LEAKED = 8 << 20  # bytes of each step
_LAST_STEP = 60  # that is made with one that hangs


class Bad(Technique):
    family = "host"
    contract = Contract.EXACT
    targets = ("forward",)
    switchable = True

    def at_step(self, step: int) -> None:
        raise NotImplementedError

    def install(self, seams: Seams, settings: Settings) -> Handle:
        is_on, steps = [True], [0]

        def after(optimizer: object) -> None:
            if is_on[0]:
                steps[0] += 1
                self.at_step(steps[0])

        seams.step_ends.subscribe(after)
        return seams.handle(lambda: is_on.__setitem__(0, True), lambda: is_on.__setitem__(0, False))


class Hangs(Bad):
    """Is quick for some steps, and waits for ever then."""

    name = "hangs"

    def at_step(self, step: int) -> None:
        while step > _LAST_STEP:
            time.sleep(1.0)


class Leaks(Bad):
    """Keeps some megabytes of each step."""

    name = "leaks"
    _kept: ClassVar[list[bytes]] = []

    def at_step(self, step: int) -> None:
        self._kept.append(bytes([step % 251 + 1]) * LEAKED)


class Hastens(Technique):
    """Has the program's own pause be a third."""

    name = "hastens"
    family = "host"
    contract = Contract.EXACT
    targets = ("forward",)
    switchable = True

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def pause(seconds: float) -> None:
            vars(sys.modules["__main__"])["PAUSE"] = seconds

        seams.framework_arrived.subscribe(lambda: pause(0.004))
        return seams.handle(lambda: pause(0.004), lambda: pause(0.012))
