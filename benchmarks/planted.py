"""Techniques that gain nothing and cost a known share of a step: for `power.py` only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class Planted(Technique):
    """Waits, busily, for a share of each step.

    What it does: nothing but cost time. When it helps: never. When it hurts: always. Contract: exact.
    """

    name = "planted"
    family = "benchmark"
    contract = Contract.EXACT
    targets = ()
    knobs = (Knob("share", 0.05, "of the step's own time", low=0.0, high=1.0),)

    def install(self, seams: Seams, settings: Settings) -> Handle:
        share = float(settings["share"])
        seconds: list[float] = []
        ended = [0.0]

        def wait(optimizer: Any) -> None:
            now = time.perf_counter()
            if ended[0]:
                seconds.append(now - ended[0])
                del seconds[:-100]
                until = now + share * sorted(seconds)[len(seconds) // 2]
                while time.perf_counter() < until:
                    pass
            ended[0] = time.perf_counter()

        seams.step_ends.subscribe(wait)
        return seams.handle()
