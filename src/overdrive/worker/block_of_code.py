"""A block of code under a plan, in a notebook or a library: a session that says where it could not act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overdrive.core.settings import Chosen
from overdrive.core.units import unit_of
from overdrive.datacache.audit import Audits
from overdrive.seams.hub import Seams
from overdrive.worker.clock import clock_for
from overdrive.worker.saying import announce, say
from overdrive.worker.session import Session

NO_OPTIMIZER = (
    "no optimizer was made in this block, so that what alters a model before it is trained did nothing: "
    "make model and optimizer inside"
)


class BlockOfCode(Session):
    def __init__(self, techniques: Sequence[Chosen], inference: bool = False) -> None:
        self._clock = clock = clock_for(inference)
        super().__init__(techniques, [clock.watch, Audits(lambda: clock.steps), self._watch], announce, inference)
        self._inference = inference
        self._optimizers = 0

    def so_far(self) -> str:
        """How many steps the block has made, and under what; empty where it made none."""
        steps = self._clock.steps
        return f"{steps:,} {unit_of(self._inference)}s under {', '.join(self.active) or 'nothing'}" if steps else ""

    def __exit__(self, kind: object = None, *rest: object) -> None:
        told = (
            kind is None
            and not self._inference
            and self._techniques
            and not self._optimizers
            and self.seams.frameworks == ["torch"]
        )
        super().__exit__(kind, *rest)
        if told:
            say(NO_OPTIMIZER)

    def _watch(self, seams: Seams) -> None:
        seams.optimizer_made.subscribe(self._made)

    def _made(self, optimizer: Any, models: Any) -> None:
        self._optimizers += 1
