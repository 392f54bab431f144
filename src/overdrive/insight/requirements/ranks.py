"""How long a step takes under a layout: what its ranks do is measured, the network between them is reckoned.

A rank is run as one of so many, with its layout's own code, where the others are imagined (`overdrive.ranks.imagined`).
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overdrive.core.json_data import from_json
from overdrive.core.program import Program
from overdrive.core.rank_notes import STEP, Note
from overdrive.core.records import TrialOver
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.insight.requirements.timeline import played
from overdrive.machine.pool.curve import Network
from overdrive.ranks.membership import IMAGINED
from overdrive.trials.launchers.ranks import RanksLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_NOTES = "overdrive.worker.rank_notes"
_WARM_UP = 4  # steps: after each of them ranks compare what they have come to, then after every sixteenth
_STEPS = (4, 17)  # that are noted, of which the first begins with the trial's pause
_SECONDS = 6.0  # of them, about


class CannotForetell(Exception):
    """The step could not be foretold; the message is the reason, for people."""


@dataclass(frozen=True)
class Foretold:
    """`seconds` of a step; `communication`: the share in which a rank waits for others or for the network."""

    seconds: float
    communication: float
    said: tuple[str, ...]  # what rank 0 told of how the work is divided


def foretold(
    program: Program, technique: Chosen, ranks: int, network: Network, together: bool, stages: int = 1
) -> Foretold:
    """
    Args:
        together: the ranks are of this machine, and compute at the same time; else each has one as this to itself.
        stages: of a pipeline: ranks of which each does something else.

    Raises:
        CannotForetell: a rank's trial failed, or made too few steps.
    """
    groups = [range(ranks)] if together else [range(each, each + 1) for each in range(stages)]
    notes: dict[int, list[Note]] = {}
    said: tuple[str, ...] = ()
    with TrialPool() as pool:
        for started in groups:
            found, told = _noted(pool, program, technique, ranks, started)
            notes.update(found)
            said = said or told
    least = min(sum(note.operation == STEP for note in each) for each in notes.values())
    try:
        result = played({rank: _last_steps(each, least) for rank, each in notes.items()}, network)
    except ValueError as error:
        raise CannotForetell(f"{error}") from None
    seconds = statistics.median(result.steps)
    return Foretold(seconds, max(0.0, 1 - result.computing / statistics.fmean(result.steps)), said)


def _noted(
    pool: TrialPool, program: Program, technique: Chosen, ranks: int, started: Sequence[int]
) -> tuple[Mapping[int, list[Note]], tuple[str, ...]]:
    """By rank, the notes of some steps; and what they told."""
    with tempfile.TemporaryDirectory(prefix="overdrive-ranks-") as folder:
        spec = TrialSpec(program, (technique,), observers=(_NOTES,), environment={IMAGINED: folder}, folder=folder)
        trial = Trial(pool, spec, RanksLauncher(ranks, pool.launcher, started))
        try:
            trial.first_step()
            first = trial.run(_WARM_UP - 1)
            least, most = _STEPS
            count = int(min(most, max(least, _SECONDS * first.steps / max(1e-6, first.seconds))))
            trial.run(count)
            trial.observed()
            left_out = trial.left_out
            said = [line for line in trial.output_tail().splitlines() if line.startswith("overdrive: ")]
        except TrialOver as over:
            raise CannotForetell(f"its trial came to an end: {over.exit_reason}") from None
        finally:
            trial.stop()
        if left_out:
            raise CannotForetell(next(iter(left_out.values())))
        found = {}
        for rank in started:
            notes = from_json(list[Note], json.loads((Path(folder) / f"rank{rank}.json").read_text()))
            found[rank] = _last_steps(notes, count - 1)
        return found, tuple(line.removeprefix("overdrive: ") for line in said)


def _last_steps(notes: Sequence[Note], count: int) -> list[Note]:
    """From the end of one step to that of the last, with so many between."""
    ends = [place for place, note in enumerate(notes) if note.operation == STEP]
    first = ends[-count - 1] + 1 if len(ends) > count else 0
    return [*notes[first : ends[-1] + 1]]
