"""The two sides of a duel one after the other: for programs of which two do not fit into the memory at once.

Each side makes the same steps as the other: it warms up, runs its blocks and is stopped; then the other comes.
Minutes lie between the two, so that only several such pairs of processes say something (see `trials.run_duel`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from overdrive.core.facts import Facts
from overdrive.core.records import Block, Trace, TrialOver
from overdrive.evidence.speed import Pair
from overdrive.trials.duel import (
    FEWEST_PAIRS,
    FEWEST_SECONDS,
    LONGEST_CHUNK,
    TO_THE_END,
    WARM_UP_STEPS,
    Duel,
    Pace,
    Rules,
    blame,
    comparable,
    hopeless,
    nothing_new,
    profile_steps,
    warmed_up,
    with_setup,
)
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_BLOCK_SECONDS = 0.2  # longer than where blocks alternate: minutes lie between the two sides, whatever their length


@dataclass
class _Stretch:
    """The steps that both sides make: the side that comes first finds out how many."""

    warm_steps: int = 0
    profile_steps: int = 0
    size: int = 0  # steps in a block


def process_pair(
    pool: TrialPool,
    duel: Duel,
    process: int,
    rules: Rules,
    deadline: float,
    short_block: int | None,
    on_pair: Callable[[Duel], None],
) -> Pace | None:
    """A fresh process of each side, in random order, each with all its blocks.

    Args:
        process: its number, from 0.
        short_block: steps in a block, where the program's length dictates them.
    """
    old_first = random.Random(1000 * process + len(duel.new.techniques)).random() < 0.5
    stretch = _Stretch(size=short_block or 0)
    blocks: dict[bool, list[Block]] = {}
    for is_old in (old_first, not old_first):
        try:
            with blame(duel, new=not is_old):
                blocks[is_old] = _one_side(pool, duel, is_old, process, rules, deadline, stretch)
        except TrialOver as over:
            return _to_the_end(pool, duel, is_old, over.report, stretch) if over.exit_reason.kind == "ended" else None
        if not blocks[is_old]:
            return None
    mine = []
    for old, new in zip(blocks[True], blocks[False], strict=True):
        duel.old_side, duel.new_side = duel.old_side.add(old), duel.new_side.add(new)
        mine.append(Pair(process, old.steps, old.seconds, comparable(duel, {True: old, False: new}), old_first))
        duel.pairs.append(mine[-1])
    if duel.old_trace and duel.new_trace and duel.old_trace.steps != duel.new_trace.steps:
        duel.new_trace = None  # one makes several steps in a call, and was not at the other's step when it was stopped
    on_pair(duel)
    if hopeless(mine) and not rules.patient:
        return None
    paces = [block.seconds / block.steps for row in blocks.values() for block in row[-1:]]
    return Pace(stretch.warm_steps, min(paces), max(paces))


def _one_side(
    pool: TrialPool, duel: Duel, is_old: bool, process: int, rules: Rules, deadline: float, stretch: _Stretch
) -> list[Block]:
    """Its blocks; none where all that is new was left out."""
    trial = Trial(pool, duel.old if is_old else duel.new)
    try:
        first = trial.first_step(max(deadline, time.monotonic() + FEWEST_SECONDS))
        if is_old:
            duel.old_side = with_setup(duel.old_side, first)
        else:
            duel.new_side = with_setup(duel.new_side, first)
            if not rules.patient and nothing_new(duel, trial):
                duel.new_trace = trial.trace()
                return []
        _warm_up(trial, stretch)
        facts: Facts | None = None
        if process == 0:
            trial.run(stretch.profile_steps, profile=True)
            # What finding out the costs leaves behind slows the steps that follow.
            facts = trial.facts(costs=rules.patient)
            trial.run(WARM_UP_STEPS)
        made = [trial.run(stretch.size) for _ in range(FEWEST_PAIRS)]
        if is_old:
            duel.old_trace, duel.old_facts = trial.trace(), facts or duel.old_facts
        else:
            duel.new_trace, duel.new_facts = trial.trace(), facts or duel.new_facts
        return made
    finally:
        trial.stop()


def _warm_up(trial: Trial, stretch: _Stretch) -> None:
    if stretch.warm_steps:
        trial.run(stretch.warm_steps)
        pace = 0.0
    else:
        seconds, chunk = 0.0, WARM_UP_STEPS
        while not warmed_up(stretch.warm_steps, seconds):
            block = trial.run(chunk)
            seconds += block.seconds
            stretch.warm_steps += chunk
            chunk = min(stretch.warm_steps, LONGEST_CHUNK)
        pace = block.seconds / block.steps
        stretch.profile_steps = profile_steps(pace)
    stretch.size = stretch.size or max(1, round(_BLOCK_SECONDS / max(pace, 1e-6)))


def _to_the_end(pool: TrialPool, duel: Duel, is_old: bool, report: Mapping[str, Any], stretch: _Stretch) -> Pace | None:
    """The program was over on one side: a short one. The other side makes it whole too, to be compared."""
    if not report.get("steps"):
        return None
    traces = {is_old: Trace.from_report(report)}
    trial = Trial(pool, duel.new if is_old else duel.old)
    began = time.monotonic()
    try:
        with blame(duel, new=is_old):
            trial.first_step()
            trial.run(TO_THE_END)
    except TrialOver as over:
        if over.exit_reason.kind == "ended" and over.report.get("steps"):
            traces[not is_old] = Trace.from_report(over.report)
    finally:
        trial.stop()
    duel.old_trace, duel.new_trace = traces.get(True), traces.get(False)
    if len(traces) < 2:
        return None
    steps = min(trace.steps for trace in traces.values())
    pace = (time.monotonic() - began) / steps
    return Pace(stretch.warm_steps, pace, pace, total_steps=steps)
