"""How long a step takes under a layout: what its ranks do is measured, the network between them is reckoned.

A rank is run as one of so many, with its layout's own code, where the others are imagined (`overdrive.ranks.imagined`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from overdrive.core.json_data import from_json
from overdrive.core.link import Link
from overdrive.core.program import Program
from overdrive.core.rank_notes import STEP, Note
from overdrive.core.records import TrialOver
from overdrive.core.requirements_result import RankLayout
from overdrive.core.scratch import passing
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.insight.requirements.needs import Needs
from overdrive.insight.requirements.timeline import played
from overdrive.insight.requirements.unlike import step_of
from overdrive.machine.pool.curve import Measured, Network, OverLink
from overdrive.machine.pool.start import PoolUnavailable, measure_here
from overdrive.ranks.membership import IMAGINED, threads_of
from overdrive.trials.launchers.ranks import RanksLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_NOTES = "overdrive.worker.rank_notes"
_WARM_UP = 4  # steps: after each of them ranks compare what they have come to, then after every sixteenth
_FIRST = _WARM_UP + 1  # the trial stood still before it: what is played begins at its end
_STEPS = (4, 17)  # after the warm-up
_SECONDS = 6.0  # of them, about
_RUN = 4  # steps
_MOST_STAGES = 4  # each has a trial of its own
_MOST_PARTS = 8  # of layers: who tries whether they can be divided makes the call as often, in fp64


class CannotForetell(Exception):
    """The step could not be foretold; the message is the reason, for people."""


@dataclass(frozen=True)
class Ranks:
    """Attributes: `together`: they are of this machine, and share it; else each has one as this to itself."""

    count: int
    network: Network
    together: bool
    name: str  # of the network, for people


def ranks_of(
    count: int, link: Link | Measured | None, quick: bool, tell: Callable[[str], None] = lambda _: None
) -> Ranks:
    """Over a link that was stated, or measured before, or else those of this machine, among which it is measured.

    Raises:
        CannotForetell: they are more than there are cores here or were measured, or could not be measured.
    """
    if isinstance(link, Measured):
        if count > link.ranks:
            raise CannotForetell(f"{link.name} was measured among {link.ranks} ranks")
        network = replace(link, busy=link.busy / threads_of(1))
        return Ranks(count, network, False, f"{count} machines as this one, over the network of {link.name}")
    if link is not None:
        return Ranks(count, OverLink(link), False, f"{count} machines as this one, over {link.name}")
    cores = threads_of(1)
    if count > cores:
        raise CannotForetell(
            f"there are {cores} cores here for {count} ranks: say how they are connected (--link 10Gbit,50us)"
        )
    tell("Measuring what goes between ranks.")
    try:
        told = measure_here(count, quick)
    except PoolUnavailable as error:
        raise CannotForetell(str(error).rstrip(".")) from None
    times = {name: {int(size): float(took) for size, took in points} for name, points in told["seconds"].items()}
    here = Measured(count, times, told["busy"] / threads_of(count), memory=told["memory"] or {}).by_memory()
    return Ranks(count, here, True, f"{count} processes of this machine, measured")


def with_steps(
    program: Program,
    layouts: Sequence[RankLayout],
    technique_of: Callable[[str], Chosen],
    ranks: Ranks,
    tell: Callable[[str], None] = lambda _: None,
) -> list[RankLayout]:
    """The same layouts, with how long a step would take or why that is not known."""
    found = []
    for each in layouts:
        if each.seconds is not None:  # one process
            found.append(each)
            continue
        counts = dict(part.split("=") for part in each.layout.split(","))
        try:
            _may_be_tried(counts, ranks)
            tell(f"Measuring what a rank does under {each.layout}.")
            stages = int(counts.get("pipeline", 1))
            step = foretold(program, technique_of(each.layout), ranks, stages)
        except CannotForetell as error:
            found.append(replace(each, why=str(error)))
        else:
            found.append(replace(each, seconds=step.seconds, communication=step.communication, told=step.said))
    return found


def may_be_measured(needs: Needs) -> None:
    """
    Raises:
        CannotForetell: what a rank does of such a program is not measured.
    """
    if needs.inference:
        raise CannotForetell("the program trains nothing")
    if needs.device != "cpu":
        raise CannotForetell("what a rank does is measured on CPUs alone, and the program runs on a GPU")


def _may_be_tried(counts: Mapping[str, str], ranks: Ranks) -> None:
    if int(counts.get("tensor", 1)) > _MOST_PARTS:
        raise CannotForetell(f"layers are not tried over more than {_MOST_PARTS} ranks")
    if int(counts.get("pipeline", 1)) > _MOST_STAGES and not ranks.together:
        raise CannotForetell(f"more than {_MOST_STAGES} stages are not tried")


@dataclass(frozen=True)
class Foretold:
    """`seconds` of a step; `communication`: the share in which a rank waits for others or for the network."""

    seconds: float
    communication: float
    said: tuple[str, ...]  # what rank 0 told of how the work is divided


def foretold(program: Program, technique: Chosen, ranks: Ranks, stages: int = 1) -> Foretold:
    """
    Args:
        stages: of a pipeline: ranks of which each does something else.

    Raises:
        CannotForetell: a rank's trial failed, or made too few steps.
    """
    notes, said = noted(program, technique, ranks, stages)
    return reckoned(notes, said, ranks)


def reckoned(notes: Mapping[int, Sequence[Note]], said: tuple[str, ...], ranks: Ranks) -> Foretold:
    """What was noted of some ranks, played over the network of these.

    Raises:
        CannotForetell: they made too few steps.
    """
    try:
        seconds, computing = _together(notes, ranks.network) if ranks.together else _apart(notes, ranks)
    except ValueError as error:
        raise CannotForetell(str(error)) from None
    return Foretold(seconds, max(0.0, 1 - computing / seconds), said)


def _together(notes: Mapping[int, Sequence[Note]], network: Network) -> tuple[float, float]:
    """Of ranks that were noted beside each other: seconds of a step, and those in which a rank computes."""
    result = played(notes, network)
    # The shortest run of steps: on a shared machine others only ever add to it, and one process is measured likewise.
    steps = [*zip(result.steps, result.computing, strict=True)]
    runs = [steps[first : first + _RUN] for first in range(max(1, len(steps) - _RUN + 1))]
    seconds, computing = zip(*min(runs, key=lambda run: sum(seconds for seconds, _ in run)), strict=True)
    return statistics.fmean(seconds), statistics.fmean(computing)


def _apart(notes: Mapping[int, Sequence[Note]], ranks: Ranks) -> tuple[float, float]:
    """The same of ranks of which each has a machine to itself: now one is the last, now the other."""
    step = step_of(notes, ranks.network, ranks.count)
    return step.computing + step.network + step.slowest, step.computing


def noted(
    program: Program, technique: Chosen, ranks: Ranks, stages: int = 1, steps: tuple[int, int] = _STEPS
) -> tuple[dict[int, Sequence[Note]], tuple[str, ...]]:
    """By rank that was run, its notes from the end of one step to that of another; and what rank 0 told.

    Args:
        steps: at least and at most, after the warm-up.

    Raises:
        CannotForetell: see `foretold`.
    """
    groups = [range(ranks.count)] if ranks.together else [range(each, each + 1) for each in range(stages)]
    notes: dict[int, list[Note]] = {}
    said: tuple[str, ...] = ()
    with TrialPool() as pool:
        for started in groups:
            found, told = _noted(pool, program, technique, ranks.count, started, steps)
            notes.update(found)
            said = said or told
    last = min(sum(note.operation == STEP for note in each) for each in notes.values())
    return {rank: _between(each, _FIRST, last) for rank, each in notes.items()}, said


def _noted(
    pool: TrialPool,
    program: Program,
    technique: Chosen,
    ranks: int,
    started: Sequence[int],
    steps: tuple[int, int] = _STEPS,
) -> tuple[Mapping[int, list[Note]], tuple[str, ...]]:
    """By rank, its notes from the start; and what rank 0 told."""
    with passing("overdrive-ranks-") as folder:
        spec = TrialSpec(
            program,
            (technique,),
            losses=False,  # ranks would tell each other those that are read for us
            observers=(_NOTES,),
            environment={IMAGINED: str(folder)},
            folder=str(folder),
        )
        trial = Trial(pool, spec, RanksLauncher(ranks, pool.launcher, started))
        try:
            trial.first_step()
            first = trial.run(_WARM_UP - 1)
            least, most = steps
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
        files = {rank: (folder / f"rank{rank}.json").read_text() for rank in started}
    notes = {rank: from_json(list[Note], json.loads(text)) for rank, text in files.items()}
    return notes, tuple(line.removeprefix("overdrive: ") for line in said)


def _between(notes: Sequence[Note], first: int, last: int) -> Sequence[Note]:
    """From the end of one step to that of another. Of all ranks they have to be the same: messages are numbered."""
    ends = [place for place, note in enumerate(notes) if note.operation == STEP]
    return notes[ends[first - 1] + 1 : ends[last - 1] + 1]
