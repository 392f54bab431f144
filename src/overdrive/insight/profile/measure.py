"""Measures a program for a profile: two copies in turns, then one whose steps are recorded in detail.

In each pair of blocks, which are the same steps of both copies, one is left alone and gives the step's own length; the
parts of the other are timed. Which is which changes from pair to pair, so that what differs between two processes of
the same program (several percent) falls on both sides alike. Programs too short for that are run again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import whole_units_of
from overdrive.insight.profile.blocks import BlockPair, ratio, standard_error, undisturbed, untimed
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.warming import half_a_second, warm_up

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
_WARM_UP_STEPS = 9
_FEWEST_STEPS = 4  # of the whole program
_MOST_CALLS = 40_000  # of operators, that are recorded: reading them takes about 50 us each
_MOST_RECORDED = 30  # steps
_WATCHED_SECONDS = 4.0  # for an evaluation to come by


class CannotProfile(Exception):
    """No profile can be made; the message is one sentence for people."""


@dataclass
class Measured:
    """Times in seconds a step."""

    step: float = 0.0  # in plain blocks
    timed: float = 0.0  # in timed ones, the same steps
    phases: dict[str, float] = field(default_factory=dict)  # of the timed ones, without what looking at the clock costs
    error: float = 0.0  # the standard error of timed / step
    steps: int = 0
    pairs: int = 0
    dropped: int = 0  # pairs of blocks that were disturbed
    processes: int = 0  # pairs of
    details: Mapping[str, Any] = field(default_factory=dict)
    facts: Facts | None = None
    inference: bool = False  # its steps are the calls of its model
    walls: dict[str, float] = field(default_factory=dict)  # a step while it was recorded so
    recorded: dict[str, int] = field(default_factory=dict)  # steps
    length: int | None = None  # the program's steps, where it ended
    trace: str = ""


def measure(pool: TrialPool, program: Program, watch: bool, say: Callable[[str], None]) -> Measured:
    """
    Raises:
        CannotProfile: it makes no training steps, too few, or fails by itself.
    """
    found = Measured()
    say("finding out whether it trains")
    plain = _clocked(pool, TrialSpec(program))
    found.inference = plain.clock == "inference"
    say(f"timing the {plain.unit}: two copies in turns, one plain and one timed")
    blocks: list[BlockPair] = []
    while not found.processes or not enough(blocks, found.length, found.processes):
        found.length = turns(pool, plain, found.length, blocks)
        found.processes += 1
        if found.length is not None and found.length < _FEWEST_STEPS:
            what = whole_units_of(found.length, found.inference)
            raise CannotProfile(f"The program makes only {what}: too few to be measured.")
    if not blocks:
        raise CannotProfile("The program ended before two copies of it could be timed over the same steps.")
    _sum_up(found, blocks)
    say("recording its operators")
    _details(pool, plain, found, watch)
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
        pace = _warm_up(one, length)
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
    if over.exit_reason.kind == "unwatched":
        raise CannotProfile(over.exit_reason.detail)
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


def _warm_up(trial: Trial, length: int | None) -> float:
    """Warm up until its steps are at their usual pace; returns that, in seconds."""
    if length is not None:
        block = trial.run(max(1, min(_WARM_UP_STEPS, length // 6)))
        return block.seconds / block.steps
    return warm_up([trial], first=_WARM_UP_STEPS, enough=half_a_second).paces[0]


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


def _details(pool: TrialPool, plain: TrialSpec, found: Measured, watch: bool) -> None:
    """What is recorded in steps of their own: what operators count, how long they take, lines, memory, a trace."""
    trial = Trial(pool, replace(plain, profiling="details"))
    try:
        trial.first_step()
        _warm_up(trial, found.length)
        left = None if found.length is None else found.length - trial.step
        _record(trial, found, "counts", 1)
        calls = sum(cell["calls"] for cell in trial.recorded().get("counts", {}).get("cells", ())) or _MOST_CALLS / 5
        steps = int(max(1, min(_MOST_RECORDED, _MOST_CALLS / calls)))
        lines, trace = 3, 2
        if left is not None:
            lines, trace = (3, 2) if left > 16 else (1, 1)
            steps = max(1, min(steps, left - 2 - lines - trace))
        _record(trial, found, "operators", steps)
        found.details = trial.recorded()
        _record(trial, found, "lines", lines)
        _record(trial, found, "trace", trace)
        found.details = trial.recorded()
        found.trace = str(pool.recordings / "trace.json")
        if watch:
            with suppress(TrialOver):
                _watch(trial, found)
        found.facts = trial.facts(costs=True)
    except TrialOver:
        pass  # it came shorter than before: what was recorded stands
    finally:
        trial.stop()


def _record(trial: Trial, found: Measured, what: str, steps: int) -> None:
    block = trial.run(steps, record=what)
    found.walls[what] = block.seconds / block.steps
    found.recorded[what] = block.steps


def _watch(trial: Trial, found: Measured) -> None:
    """Run on for a while, and watch for rare events (an evaluation, say)."""
    began = time.monotonic()
    size = max(1, round(0.5 / max(found.step, 1e-6)))
    while time.monotonic() - began < _WATCHED_SECONDS:
        if found.length is not None:
            size = min(size, found.length - trial.step)
            if size < 1:
                break
        trial.run(size)
        found.details = trial.recorded()
