"""Runs the two sides of a duel one after the other: for programs of which two do not fit into the memory at once.

Each side makes the same steps as the other: it warms up, runs its blocks and is stopped; then the other comes.
Minutes lie between the two, so that only several such pairs of processes say something (see `trials.run_duel`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from overdrive.core.facts import Facts
from overdrive.core.records import Block, Trace, TrialOver
from overdrive.trials.duel import (
    FEWEST_PAIRS,
    FEWEST_SECONDS,
    TO_THE_END,
    Rules,
    hopeless,
    nothing_new,
    profile_steps,
)
from overdrive.trials.process_pair import Pace, ProcessPair, blame
from overdrive.trials.trial import Trial
from overdrive.trials.warming import WARM_UP_STEPS, in_time, settles_in, warm_up

_BLOCK_SECONDS = 0.2  # longer than where blocks alternate: minutes lie between the two sides, whatever their length
# Processes a side: minutes lie between the two sides, and only more of them can tell how much those differ.
_PROCESSES = 3


@dataclass
class _Stretch:
    """The steps that both sides make: the side that comes first finds out how many."""

    warm_steps: int = 0
    profile_steps: int = 0
    size: int = 0  # steps in a block
    blocks: int = FEWEST_PAIRS


def in_turn(rules: Rules) -> Rules:
    """The same where whole processes run in turn."""
    most = max(_PROCESSES, rules.most_processes)
    return replace(rules, processes=max(_PROCESSES, rules.processes), most_processes=most)


def blocks_seconds(slow: float, gain: float) -> float:
    """What the blocks of a pair of processes take where the slower side needs `slow` seconds a step."""
    return FEWEST_PAIRS * _block_steps(slow) * (slow + slow / max(gain, 1.0))


def _block_steps(step_seconds: float) -> int:
    return max(1, round(_BLOCK_SECONDS / max(step_seconds, 1e-6)))


def run_pair(pair: ProcessPair) -> Pace | None:
    """Run a fresh process of each side, in random order, each with all its blocks."""
    duel = pair.duel
    old_first = pair.order().random() < 0.5
    stretch = _Stretch(size=pair.short_block or 0)
    blocks: dict[bool, list[Block]] = {}
    before = duel.old_trace, duel.new_trace
    for is_old in (old_first, not old_first):
        try:
            with blame(duel, new=not is_old):
                in_time(pair.deadline + FEWEST_SECONDS if blocks else math.inf)  # else the second side is not begun
                blocks[is_old] = _one_side(pair, is_old, stretch)
        except TrialOver as over:
            return _to_the_end(pair, is_old, over.trace, stretch) if over.trace else None
        if not blocks[is_old]:
            return None
    mine = [pair.measured(old, new, old_first) for old, new in zip(blocks[True], blocks[False])]  # noqa: B905
    if duel.old_trace and duel.new_trace and duel.old_trace.steps != duel.new_trace.steps:
        # One makes several steps in a call, or was cut short: it was not at the other's step when it was stopped.
        duel.old_trace, duel.new_trace = before if all(before) else (duel.old_trace, None)
    pair.on_pair(duel)
    if hopeless(mine) and not pair.rules.patient:
        return None
    paces = [block.seconds / block.steps for row in blocks.values() for block in row[-1:]]
    return Pace(stretch.warm_steps, min(paces), max(paces))


def _one_side(pair: ProcessPair, is_old: bool, stretch: _Stretch) -> list[Block]:
    """Its blocks, as many as there is time for; none where all that is new was left out."""
    duel, patient = pair.duel, pair.rules.patient
    until = max(pair.deadline, time.monotonic() + FEWEST_SECONDS)
    trial = Trial(pair.pool, pair.spec(new=not is_old))
    try:
        pair.started(trial.first_step(until), new=not is_old)
        if not is_old and not patient and nothing_new(duel, trial):
            duel.new_trace = trial.trace()
            return []
        _warm_up(trial, stretch, until)
        facts: Facts | None = None
        if pair.number == 0:
            with duel.looking():
                trial.run(stretch.profile_steps, profile=True)
                # What finding out the costs leaves behind slows the steps that follow.
                facts = trial.facts(costs=patient)
                trial.run(WARM_UP_STEPS)
        made: list[Block] = []
        while len(made) < stretch.blocks and (not made or time.monotonic() < until):
            made.append(trial.run(stretch.size))
        stretch.blocks = len(made)
        if pair.keeps_losses and is_old:
            duel.old_trace, duel.old_facts = trial.trace(), facts or duel.old_facts
        elif pair.keeps_losses:
            duel.new_trace, duel.new_facts = trial.trace(), facts or duel.new_facts
        return made
    finally:
        trial.stop()


def _warm_up(trial: Trial, stretch: _Stretch, until: float) -> None:
    if stretch.warm_steps:
        trial.run(max(stretch.warm_steps, settles_in(trial.spec)))
        pace = 0.0
    else:
        warmed = warm_up([trial], until=until)
        stretch.warm_steps, pace = warmed.steps, warmed.paces[0]
        stretch.profile_steps = profile_steps(pace)
    stretch.size = stretch.size or _block_steps(pace)


def _to_the_end(pair: ProcessPair, is_old: bool, trace: Trace, stretch: _Stretch) -> Pace | None:
    """The program was over on one side, with this trace: a short one. Run the other side whole too, to compare them."""
    duel = pair.duel
    traces = {is_old: trace}
    trial = Trial(pair.pool, pair.spec(new=is_old))
    began = time.monotonic()
    try:
        with blame(duel, new=is_old):
            until = max(pair.deadline, began + FEWEST_SECONDS)
            trial.first_step(until)
            trial.run(TO_THE_END, until=until)
    except TrialOver as over:
        if over.trace:
            traces[not is_old] = over.trace
    finally:
        trial.stop()
    if pair.keeps_losses:
        duel.old_trace, duel.new_trace = traces.get(True), traces.get(False)
    if len(traces) < 2:
        return None
    steps = min(each.steps for each in traces.values())
    pace = (time.monotonic() - began) / steps
    return Pace(stretch.warm_steps, pace, pace, total_steps=steps)
