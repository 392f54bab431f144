"""Measures a program for a profile: a plain and a timed copy in turns, then one whose steps are recorded in detail.

The plain copy gives the step's own length; the timed one, over the same steps, its phases. What a recording costs can
so be said, and what is written of the parts was not slowed by it. Programs too short for that are run again.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from overdrive.facts import Facts
from overdrive.program import Program
from overdrive.trials.host import House, Trial
from overdrive.trials.order import Order, TrialOver

_MOST_STEPS = 300  # a side
_MOST_SECONDS = 15.0  # a side
_MOST_PAIRS = 4  # of processes, for programs that end sooner
_BLOCK_SECONDS = 0.2
_WARM_UP_SECONDS = 0.5
_WARM_UP_STEPS = 9
_FEWEST_STEPS = 4  # of the whole program
_MOST_CALLS = 40_000  # of operators, that are recorded: reading them takes about 50 us each
_MOST_RECORDED = 30  # steps
_WATCHED_SECONDS = 4.0  # for an evaluation to come by
# A pair of blocks whose ratio is further from the usual one was disturbed from outside.
_DISTURBED = 1.25


class CannotProfile(Exception):
    """There is no profile; the message is one sentence for people."""


@dataclass
class Measured:
    """Times in seconds a step."""

    step: float = 0.0  # of the plain copy
    timed: float = 0.0  # of the timed one, the same steps
    phases: dict[str, float] = field(default_factory=dict)  # of the timed one; they add up to `timed`
    steps: int = 0
    pairs: int = 0
    dropped: int = 0  # pairs of blocks that were disturbed
    processes: int = 0  # pairs of
    details: Mapping[str, Any] = field(default_factory=dict)
    facts: Facts | None = None
    walls: dict[str, float] = field(default_factory=dict)  # a step while it was recorded so
    recorded: dict[str, int] = field(default_factory=dict)  # steps
    length: int | None = None  # the program's steps, where it ended
    trace: str = ""


@dataclass
class Block:
    """The same steps of both copies, in seconds; and the phases of the second one, where it is timed."""

    steps: int
    plain: float
    timed: float
    phases: Mapping[str, float]


def measure(house: House, program: Program, watch: bool, say: Callable[[str], None]) -> Measured:
    """
    Raises:
        CannotProfile: it makes no training steps, too few, or fails by itself.
    """
    found = Measured()
    say("timing the step: a plain copy and a timed one in turns")
    blocks: list[Block] = []
    orders = Order(program, profiling="plain"), Order(program, profiling="times")
    while not found.processes or not enough(blocks, found.length, found.processes):
        found.length = turns(house, orders, found.length, blocks)
        found.processes += 1
        if found.length is not None and found.length < _FEWEST_STEPS:
            steps = f"{found.length} training step{'s' if found.length > 1 else ''}"
            raise CannotProfile(f"The program makes only {steps}: too few to be measured.")
    if not blocks:
        raise CannotProfile("The program ended before two copies of it could be timed over the same steps.")
    _sum_up(found, blocks)
    say("recording its operators")
    _details(house, program, found, watch)
    return found


def turns(house: House, orders: tuple[Order, Order], length: int | None, blocks: list[Block]) -> int | None:
    """Blocks of two copies over the same steps, in turns and random order, appended to `blocks`; returns the program's
    length in steps where it ended meanwhile. `length`: as known before.

    Raises:
        CannotProfile: it makes no training steps, or fails by itself.
    """
    one, other = Trial(house, orders[0]), None
    chance = random.Random(len(blocks))
    try:
        other = Trial(house, orders[1])
        one.first_step()
        pace = _warm_up(one, length)
        other.first_step()
        if one.step > other.step:
            other.run(one.step - other.step)
        size = max(1, min(_MOST_STEPS, round(_BLOCK_SECONDS / pace)))
        if length is not None:
            size = max(1, min(size, (length - one.step) // 6))
        record = "times" if orders[1].profiling == "times" else ""
        seconds, steps = 0.0, 0
        so_far: Mapping[str, float] = {}
        while steps < _MOST_STEPS and seconds < _MOST_SECONDS:
            if length is not None and one.step + size + one.call_steps - 1 > length:
                break
            took, made = {}, {}
            for place in chance.sample((0, 1), 2):
                block = (one, other)[place].run(size, record=record if place else "")
                took[place], made[place] = block.seconds, block.steps  # more than asked for, where a call makes many
            if made[0] != made[1]:
                raise CannotProfile("Two copies of the program do not make the same steps in a call.")
            told: Mapping[str, float] = other.recorded()["seconds"] if record else {}
            phases = {phase: amount - so_far.get(phase, 0.0) for phase, amount in told.items()}
            so_far = told
            blocks.append(Block(made[0], took[0], took[1], phases))
            seconds, steps = seconds + took[0], steps + made[0]
    except TrialOver as over:
        return _length(house, over)
    finally:
        one.stop()
        if other is not None:
            other.stop()
    return length


def enough(blocks: list[Block], length: int | None, processes: int) -> bool:
    """Whether no fresh pair of processes is needed."""
    return length is None or processes >= _MOST_PAIRS or sum(block.plain for block in blocks) > _MOST_SECONDS / 3


def ratio(blocks: list[Block]) -> float:
    """Of the second copy's time to the first's."""
    return statistics.median(block.timed / block.plain for block in blocks)


def undisturbed(blocks: list[Block]) -> list[Block]:
    """Without those in which something else took the processor from one of the two."""
    usual = ratio(blocks)
    return [b for b in blocks if usual / _DISTURBED <= b.timed / b.plain <= usual * _DISTURBED] or blocks


def _length(house: House, over: TrialOver) -> int:
    steps = int(over.report.get("steps", 0))
    if over.ending.kind == "unwatched":
        raise CannotProfile(over.ending.detail)
    if over.ending.kind != "ended":
        last = [line for line in house.last_output.splitlines() if line.strip()][-1:]
        told = f" Its last line: {last[0].strip()[:200]}" if last else ""
        raise CannotProfile(f"The program fails by itself ({over.ending}).{told if 'exit code' in str(over) else ''}")
    if not steps:
        raise CannotProfile(
            "The program makes no training step that Overdrive can see: no optimizer of PyTorch or Keras steps in it."
        )
    return steps


def _warm_up(trial: Trial, length: int | None) -> float:
    """Until its steps are at their usual pace; returns that, in seconds."""
    if length is not None:
        block = trial.run(max(1, min(_WARM_UP_STEPS, length // 6)))
        return block.seconds / block.steps
    seconds, steps, chunk = 0.0, 0, _WARM_UP_STEPS
    while not steps or seconds < _WARM_UP_SECONDS:
        block = trial.run(chunk)
        seconds, steps = seconds + block.seconds, steps + block.steps
        pace = block.seconds / block.steps
        chunk = max(1, min(64, steps))
    return pace


def _sum_up(found: Measured, blocks: list[Block]) -> None:
    kept = undisturbed(blocks)
    found.steps = sum(block.steps for block in kept)
    found.pairs, found.dropped = len(blocks), len(blocks) - len(kept)
    found.step = sum(block.plain for block in kept) / found.steps
    # The median of the pairs: what disturbs a few of them does not move it.
    found.timed = found.step * ratio(blocks)
    scale = found.timed / (sum(block.timed for block in kept) / found.steps)
    found.phases = {phase: scale * sum(b.phases[phase] for b in kept) / found.steps for phase in kept[0].phases}


def _details(house: House, program: Program, found: Measured, watch: bool) -> None:
    """What is recorded in steps of their own: what operators count, how long they take, lines, memory, a trace."""
    trial = Trial(house, Order(program, profiling="details"))
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
        found.trace = str(house.recordings / "trace.json")
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
    """Let it go on for a while, with its rare doings (an evaluation, say) being watched for."""
    began = time.monotonic()
    size = max(1, round(0.5 / max(found.step, 1e-6)))
    while time.monotonic() - began < _WATCHED_SECONDS:
        if found.length is not None:
            size = min(size, found.length - trial.step)
            if size < 1:
                break
        trial.run(size)
        found.details = trial.recorded()
