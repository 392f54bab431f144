"""Measures a program for a profile: two copies in turns, then one whose steps are recorded in detail.

In each pair of blocks, which are the same steps of both copies, one is left alone and gives the step's own length; the
parts of the other are timed. Which is which changes from pair to pair, so that what differs between two processes of
the same program (several percent) falls on both sides alike. Programs too short for that are run again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import whole_units_of
from overdrive.insight.profile.blocks import BlockPair, ratio, standard_error, undisturbed, untimed
from overdrive.insight.profile.measured import Measured
from overdrive.insight.profile.recording import record
from overdrive.insight.profile.warming import warm
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_MOST_STEPS = 2000  # a side
_MOST_SECONDS = 12.0  # a side
_ENOUGH_STEPS, _ENOUGH_SECONDS = 90, 4.0  # a side: that many, or so long ...
_ENOUGH_PAIRS = 12
_FEWEST_BLOCKS = 6  # that a short program is divided into: what disturbs one costs no more than that
# A block begins with some steps that are not timed: a process that stood still, and whose seams were just entered or
# left, comes to its pace in about 3 ms. Of blocks of four steps of 0.7 ms the middle half of the ratios' logarithms lay
# 0.5 apart without that, and 0.1 after four such steps.
_LEAD_SECONDS, _MOST_LEAD = 0.004, 8
_SURE = 0.01  # ... and the ratio of the two sides known so well (its standard error)
# Pairs of processes, for programs that end sooner: one pair's ratio may be 4 % off the next one's.
_FEWEST_PROCESSES, _MOST_PROCESSES = 4, 8
_BLOCK_SECONDS = 0.1
_FEWEST_STEPS = 4  # of the whole program


class CannotProfile(Exception):
    """No profile can be made; the message is one sentence for people."""


class _Trains(Exception):
    """An optimizer steps after all: until then the program had only called its model."""


def measure(pool: TrialPool, program: Program, watch: bool, say: Callable[[str], None]) -> Measured:
    """
    Raises:
        CannotProfile: it makes no training steps, too few, or fails by itself.
    """
    say("finding out whether it trains")
    plain = _clocked(pool, TrialSpec(program))
    try:
        return _measured(pool, plain, watch, say)
    except _Trains:  # what comes before its steps is no part of one
        return _measured(pool, replace(plain, clock="training"), watch, say)


def _measured(pool: TrialPool, plain: TrialSpec, watch: bool, say: Callable[[str], None]) -> Measured:
    found = Measured(inference=plain.clock == "inference")
    say(f"timing the {plain.unit}: two copies in turns, one plain and one timed")
    blocks: list[BlockPair] = []
    while not found.processes or not enough(blocks, found.length, found.processes):
        found.length = turns(pool, plain, found.length, blocks)
        found.processes += 1
        if found.length is not None and found.length < _FEWEST_STEPS:
            what = whole_units_of(found.length, found.inference)
            more = "give it more by its own options or its data"
            raise CannotProfile(f"The program makes only {what}, too few to be measured: {more}.")
    if not blocks:
        raise CannotProfile("The program ended before two copies of it could be timed over the same steps.")
    _sum_up(found, blocks)
    say("recording its operators")
    record(pool, plain, found, watch)
    return found


def _clocked(pool: TrialPool, plain: TrialSpec) -> TrialSpec:
    """With the clock that suits it: of training, or of its model's calls where nothing is trained.

    A trial whose parts are timed does not look for that: whoever trains would pay for it.
    """
    trial = Trial(pool, plain)
    try:
        trial.first_step()
    except TrialOver as over:
        if over.exit_reason.kind == "answers":
            return replace(plain, clock="inference")
    finally:
        trial.stop()
    return plain


def turns(pool: TrialPool, plain: TrialSpec, length: int | None, blocks: list[BlockPair]) -> int | None:
    """Blocks of two copies over the same steps, in turns and random order, appended to `blocks`; returns the program's
    length in steps where it ended meanwhile. `length`: as known before.

    Raises:
        CannotProfile: it makes no training steps, or fails by itself.
    """
    order = replace(plain, profiling="times")
    one, other = Trial(pool, order), None
    rng = random.Random(len(blocks))
    known = len(blocks)
    processes = len({block.processes for block in blocks})
    try:
        other = Trial(pool, order)
        copies = one, other
        one.first_step()
        pace = warm(one, length)
        other.first_step()
        if one.step > other.step:
            other.run(one.step - other.step)
        for copy in copies:
            copy.run(1, record="times")
        so_far = [_totals(copy) for copy in copies]
        size = max(1, min(_MOST_STEPS, round(_BLOCK_SECONDS / pace)))
        lead = min(_MOST_LEAD, round(_LEAD_SECONDS / pace))
        if length is not None:
            both = max(1, min(size + lead, (length - one.step) // _FEWEST_BLOCKS))
            lead = min(lead, both // 2)
            size = both - lead
        roles: list[int] = []
        while not _sure(blocks[known:]):
            if length is not None and one.step + lead + size + one.call_steps - 1 > length:
                break
            roles = roles or rng.sample((0, 1), 2)
            timed = roles.pop()
            took, made = {}, {}
            for place in rng.sample((0, 1), 2):
                block = copies[place].run(size, lead, record="times" if place == timed else "")
                took[place], made[place] = block.seconds, block.steps  # more than asked for, where a call makes many
            if made[0] != made[1]:
                raise CannotProfile("Two copies of the program do not make the same steps in a call.")
            totals = _totals(copies[timed])
            phases, looks = (
                {phase: amount - before[phase] for phase, amount in now.items()}
                for now, before in zip(totals, so_far[timed], strict=True)
            )
            so_far[timed] = totals
            blocks.append(BlockPair(made[0], took[1 - timed], took[timed], phases, looks, processes, timed))
    except TrialOver as over:
        return _length(pool, over)
    finally:
        one.stop()
        if other is not None:
            other.stop()
    return length


def _totals(copy: Trial) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Seconds, and looks at the clock, by phase, in all blocks so far that were timed."""
    recorded = copy.recorded()
    if reason := recorded["left_out"].get("times"):
        raise CannotProfile(f"The parts of a step could not be timed ({reason}).")
    return recorded["seconds"], recorded["looks"]


def _sure(blocks: list[BlockPair]) -> bool:
    """Whether these are enough, or too many, however sure they make the ratio."""
    steps, seconds = sum(block.steps for block in blocks), sum(block.plain for block in blocks)
    if steps >= _MOST_STEPS or seconds >= _MOST_SECONDS:
        return True
    many = len(blocks) >= _ENOUGH_PAIRS and (steps >= _ENOUGH_STEPS or seconds >= _ENOUGH_SECONDS)
    return many and standard_error(undisturbed(blocks)) <= _SURE


def enough(blocks: list[BlockPair], length: int | None, processes: int) -> bool:
    """Whether no fresh pair of processes is needed."""
    if length is None or processes >= _MOST_PROCESSES:
        return True
    return processes >= _FEWEST_PROCESSES and _sure(blocks)


def _length(pool: TrialPool, over: TrialOver) -> int:
    steps = over.trace.steps if over.trace else 0
    if said := over.exit_reason.unwatched:
        raise CannotProfile(said)
    if over.exit_reason.kind == "trains":
        raise _Trains
    if over.exit_reason.kind == "hang":
        raise CannotProfile(f"The program stopped making steps ({over.exit_reason.detail}).")
    if not over.exit_reason.by_itself:
        last = [line for line in pool.last_output.splitlines() if line.strip()][-1:]
        last_line = f" Its last line: {last[0].strip()[:200]}" if last else ""
        raise CannotProfile(
            f"The program fails by itself ({over.exit_reason}).{last_line if 'exit code' in str(over) else ''}"
        )
    if not steps:
        raise CannotProfile(
            "The program makes no training step that Overdrive can see: no optimizer of PyTorch or Keras steps in it, "
            "and no model of PyTorch is called."
        )
    return steps


def _sum_up(found: Measured, blocks: list[BlockPair]) -> None:
    kept = undisturbed(blocks)
    found.steps = sum(block.steps for block in kept)
    found.pairs, found.dropped = len(blocks), len(blocks) - len(kept)
    found.step = sum(block.plain for block in kept) / found.steps
    found.timed = found.step * ratio(kept)
    share = found.timed / sum(block.timed for block in kept)
    phases = {phase: share * sum(block.phases[phase] for block in kept) for phase in kept[0].phases}
    looks = {phase: sum(block.looks[phase] for block in kept) / found.steps for phase in kept[0].looks}
    found.phases = untimed(phases, looks, found.step)
    found.error = standard_error(kept)
