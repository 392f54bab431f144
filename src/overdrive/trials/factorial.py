"""A factorial measurement: many live trials stepped in turn, a block of each in every round, in random order.

A duel compares two; what each technique of a plan gained takes all its configurations side by side.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import psutil

from overdrive.core.records import Block, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.machine.cpu import granted_cores
from overdrive.machine.memory import available_memory
from overdrive.trials.duel import block_steps, changes_training, in_a_step, lead_steps
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.warming import Warmed, half_a_second, warm_up

# Of the memory that is left, as much may be taken. Trials may still grow, and others live here too.
_MEMORY_SHARE = 0.6


class FactorialTooLarge(Exception):
    """The trials do not fit into memory all at once. Its text is a sentence for people."""


def measure(
    pool: TrialPool,
    specs: Sequence[TrialSpec],
    rounds: int,
    deadline: float,
    on_round: Callable[[int], None] = lambda done: None,
    total_steps: int | None = None,
) -> list[list[float]]:
    """Seconds a training step, for each spec a list with one number a round; where one of them changes the training
    itself (its batches, say), seconds a sample.

    In each round all trials make the same number of steps, and the same steps of the program: what it does
    now and then, such as evaluating at the end of an epoch, falls into the same rounds for all of them.

    Only rounds that are complete come back, fewer than `rounds` (or none) where a trial is over sooner, for
    whatever reason, or `deadline` (time.monotonic()) has come. `on_round` is told how many there are.
    `total_steps` is the program's length, where it is known to be short: blocks are then made to fit it.

    Raises:
        FactorialTooLarge: the memory left does not hold all trials at once.
    """
    blocks: list[list[Block]] = []  # one of each, for each round
    by_sample = any(map(changes_training, specs))
    with ExitStack() as stack, suppress(TrialOver):
        trials, paces = _start(pool, specs, deadline, stack)
        size = block_steps(min(paces), max(paces))
        if total_steps is not None:
            left = (total_steps - trials[0].step) // rounds
            size = max(1, min(size, left - lead_steps(left)))
        chance = random.Random(len(specs))
        for done in range(1, rounds + 1):
            if time.monotonic() > deadline:
                break
            blocks.append(_round(trials, size, chance))
            on_round(done)
    return _paces(blocks, by_sample) or [[] for _ in specs]


def _round(trials: Sequence[Trial], size: int, chance: random.Random) -> list[Block]:
    """One block of each. Whole or not at all: a `TrialOver` leaves nothing behind."""
    order = chance.sample(range(len(trials)), len(trials))
    blocks = {index: trials[index].run(size, lead_steps(size)) for index in order}
    return [blocks[index] for index in range(len(trials))]


def _paces(rounds: Sequence[Sequence[Block]], by_sample: bool) -> list[list[float]]:
    """Seconds of one unit for all: samples of some and steps of others could not be compared."""
    by_sample = by_sample and all(block.samples for blocks in rounds for block in blocks)
    batches = any(block.samples for blocks in rounds for block in blocks)
    paces = []
    for blocks in rounds:
        amounts = in_a_step(blocks, by_sample, batches)
        unit = 1.0 if by_sample else statistics.fmean(amounts)  # a usual step of this round
        paces.append([each.seconds / each.steps / of * unit for each, of in zip(blocks, amounts, strict=True)])
    return [list(each) for each in zip(*paces, strict=True)]


def _start(
    pool: TrialPool, specs: Sequence[TrialSpec], deadline: float, stack: ExitStack
) -> tuple[list[Trial], list[float]]:
    """All trials at the same step and at their usual pace, and that pace in seconds a step.

    As many are started at once as there are cores, since starting is done by one; nothing is measured meanwhile.
    """
    others = _resident()
    trials: list[Trial] = []
    paces: list[float] = []
    warmed: Warmed | None = None
    at_once = granted_cores()
    # The first alone: it tells how much memory the others will take.
    groups = [specs[:1], *(specs[at : at + at_once] for at in range(1, len(specs), at_once))]
    for group in groups:
        if trials:
            _look_at_memory(len(trials), len(specs), _resident() - others)
        started = [Trial(pool, spec) for spec in group]
        for trial in started:
            stack.callback(trial.stop)
        for trial in started:
            trial.first_step(deadline)
        for trial in started:
            if warmed is None:
                warmed = warm_up([trial], enough=half_a_second)
            else:
                trial.run(warmed.steps)
            block = trial.run(warmed.chunk)
            paces.append(block.seconds / block.steps)
            trials.append(trial)
    return trials, paces


def _look_at_memory(started: int, planned: int, resident: int) -> None:
    left = available_memory()
    each = resident // started
    if left and (planned - started) * each > _MEMORY_SHARE * left:
        raise FactorialTooLarge(
            f"{planned} trials of {each / 2**20:.0f} MiB each do not fit into memory at once: "
            f"{started} are running and {left / 2**20:.0f} MiB are left."
        )


def _resident() -> int:
    """Bytes held by all processes started from here, groups and workers included; shared ones count once."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            try:
                # Data workers share most pages with the process they were forked from: by their plain
                # resident size, eight of them would look like eight programs.
                total += process.memory_full_info().pss
            except (psutil.AccessDenied, AttributeError):  # isolated by another user's right, or not Linux
                total += process.memory_info().rss
    return total
