"""Techniques with a known effect that can be switched, for tests of screening: brought along by `also`."""

from __future__ import annotations

import sys
import time
from typing import Any

from overdrive.core.contract import Contract
from overdrive.seams.hub import Handle, Seams
from overdrive.techniques.technique import Settings, Technique

_SECONDS = 0.004


class Dawdles(Technique):
    """Waits 4 ms in each step."""

    name = "dawdles"
    contract = Contract.EXACT
    targets = ()
    switchable = True

    def install(self, seams: Seams, settings: Settings) -> Handle:
        seams.step_ends.subscribe(lambda optimizer: time.sleep(_SECONDS))
        return seams.handle()


class Hastens(Technique):
    """Has the program wait less: it sets the program's own pause, which is 6 ms, to 2."""

    name = "hastens"
    contract = Contract.EXACT
    targets = ()
    switchable = True

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def pause(seconds: float) -> None:
            vars(sys.modules["__main__"])["PAUSE"] = seconds  # the program's module, which is not there yet

        seams.framework_arrived.subscribe(lambda: pause(0.002))
        return seams.handle(lambda: pause(0.002), lambda: pause(0.006))


class Fails(Technique):
    """Cannot be switched on again."""

    name = "fails"
    contract = Contract.EXACT
    targets = ()
    switchable = True

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def on() -> Any:
            raise RuntimeError("no way back")

        return seams.handle(on)


class Stays(Technique):
    """Cannot be switched."""

    name = "stays"
    contract = Contract.EXACT
    targets = ()
