"""Leaves the notes of a rank whose others are imagined where the trial's parent finds them. Runs inside a trial."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.core.json_data import to_json
from overdrive.core.rank_notes import STEP
from overdrive.ranks.membership import IMAGINED
from overdrive.ranks.rank import current
from overdrive.seams.step_counter import StepCounter

if TYPE_CHECKING:
    from overdrive.ranks.imagined import Diary
    from overdrive.seams.hub import Seams


def make_observer() -> RankNotes:
    return RankNotes()


class RankNotes:
    """An observer; reports how many steps are noted, once the notes are written."""

    def __init__(self) -> None:
        self._steps = StepCounter()

    def __call__(self, seams: Seams) -> None:
        seams.step_ends.subscribe(self.stepped)

    def stepped(self, optimizer: Any) -> None:
        if self._steps.tick(optimizer):
            self._diary.note(STEP)
            self._diary.goes_on()

    def report(self) -> int:
        rank = current()
        assert rank is not None
        place = Path(os.environ[IMAGINED]) / f"rank{rank.rank}.json"
        place.write_text(json.dumps(to_json(self._diary.notes)))
        return self._steps.steps

    @property
    def _diary(self) -> Diary:
        rank = current()
        assert rank is not None
        diary: Diary = rank.group.diary  # type: ignore[attr-defined]
        return diary
