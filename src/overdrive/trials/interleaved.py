"""The two sides of a duel side by side: two live trials, of which one steps while the other stands still."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from overdrive.core.records import Block, Trace, TrialOver
from overdrive.evidence.speed import Pair, decided, futile
from overdrive.trials.duel import (
    FEWEST_SECONDS,
    LONGEST_CHUNK,
    TO_THE_END,
    WARM_UP_STEPS,
    Duel,
    Pace,
    Rules,
    blame,
    changes_training,
    comparable,
    hopeless,
    lead_steps,
    nothing_new,
    profile_steps,
    warmed_up,
    with_setup,
)
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_MOST_CATCHING_UP = 64  # calls until two trials stand at the same step


def process_pair(
    pool: TrialPool,
    duel: Duel,
    process: int,
    rules: Rules,
    deadline: float,
    short_block: int | None,
    on_pair: Callable[[Duel], None],
) -> Pace | None:
    """A fresh pair of processes, stepped in turn, in random order, block by block.

    Args:
        process: its number, from 0.
        short_block: steps in a block, where the program's length dictates them.
    """
    chance = random.Random(1000 * process + len(duel.new.techniques))
    pace: Pace | None = None
    until = max(deadline, time.monotonic() + FEWEST_SECONDS)
    with ExitStack() as stack:
        old = Trial(pool, duel.old)
        stack.callback(old.stop)
        # Two that start at once delay each other: what is published tells how long one takes by itself.
        begun = _begun(old, until) if rules.patient else None
        new = Trial(pool, duel.new)
        stack.callback(new.stop)
        try:
            with blame(duel, new=False):
                if isinstance(begun, TrialOver):
                    raise begun
                duel.old_side = with_setup(duel.old_side, begun or old.first_step(until))
            with blame(duel, new=True):
                until = max(until, time.monotonic() + FEWEST_SECONDS) if begun else until
                duel.new_side = with_setup(duel.new_side, new.first_step(until))
            if not rules.patient and nothing_new(duel, new):
                duel.new_trace = new.trace()
                return None
            pace = _warm_up(duel, old, new, process, costs=rules.patient)
            call = max(old.call_steps, new.call_steps)
            size = -(-(short_block or pace.block_steps) // call) * call
            lead = lead_steps(size, call)
            looks = rules.looks_at((lead + size) * (pace.step_seconds + pace.slower_step_seconds))
            mine: list[Pair] = []
            while True:
                first = chance.random() < 0.5
                blocks: dict[bool, Block] = {}
                for is_old in (first, not first):
                    with blame(duel, new=not is_old):
                        blocks[is_old] = (old if is_old else new).run(size, lead)
                duel.old_side = duel.old_side.add(blocks[True])
                duel.new_side = duel.new_side.add(blocks[False])
                pair = Pair(process, blocks[True].steps, blocks[True].seconds, comparable(duel, blocks), first)
                mine.append(pair)
                duel.pairs.append(pair)
                on_pair(duel)
                if time.monotonic() > deadline or len(mine) >= looks[-1]:
                    break
                if rules.patient:
                    continue
                if hopeless(mine) or nothing_new(duel, new) or (len(mine) in looks and _settled(mine, looks)):
                    break
            _align(duel, old, new)
            with blame(duel, new=True):
                duel.new_trace = new.trace()
                if process == 0:
                    duel.new_facts = new.facts(rules.patient and bool(duel.new.techniques))
            with blame(duel, new=False):
                duel.old_trace = old.trace()
        except TrialOver as over:
            if over.exit_reason.kind == "ended" and over.report.get("steps"):
                pace = _both_to_the_end(duel, old, new, over, pace)
    return pace


def _begun(trial: Trial, until: float) -> Block | TrialOver:
    try:
        return trial.first_step(until)
    except TrialOver as over:
        return over


def _warm_up(duel: Duel, old: Trial, new: Trial, process: int, costs: bool) -> Pace:
    """Step both until they are at their usual pace; the same number of steps on both sides.

    Args:
        costs: have the first process find out what an item of its data costs.
    """
    seconds = [0.0, 0.0]
    last = [0.0, 0.0]
    steps, chunk = 0, WARM_UP_STEPS
    while not warmed_up(steps, max(seconds)):
        for index, trial in enumerate((old, new)):
            with blame(duel, new=trial is new):
                block = trial.run(chunk)
            seconds[index] += block.seconds
            last[index] = block.seconds / block.steps
        steps += chunk
        chunk = min(steps, LONGEST_CHUNK)
    if process == 0:
        looked_into = profile_steps(max(last))
        for trial in (old, new):
            with blame(duel, new=trial is new):
                trial.run(looked_into, profile=True)
        with blame(duel, new=False):
            duel.old_facts = old.facts(costs)
        steps += looked_into
        if costs:  # the fork it took has left the memory write-protected, which the next steps pay for
            for trial in (old, new):
                with blame(duel, new=trial is new):
                    trial.run(WARM_UP_STEPS)
            steps += WARM_UP_STEPS
    return Pace(steps + 1, min(last), max(last))


def _align(duel: Duel, old: Trial, new: Trial) -> None:
    """Bring both to the same step, where one makes several in a call; by the end of an epoch at the latest it works.

    What they did is compared up to there. Where they cannot meet, the traces say so.
    """
    if changes_training(duel.new):
        return
    for _ in range(_MOST_CATCHING_UP):
        if old.step == new.step:
            return
        behind, ahead = (old, new) if old.step < new.step else (new, old)
        with blame(duel, new=behind is new):
            behind.run(ahead.step - behind.step)


def _both_to_the_end(duel: Duel, old: Trial, new: Trial, over: TrialOver, pace: Pace | None) -> Pace | None:
    """The program is over on one side; let the other side come to its end too, and keep both traces."""
    reports = {duel.exit_reason is not None: over.report}
    missing = old if duel.exit_reason is not None else new
    try:
        with blame(duel, new=missing is new):
            missing.run(TO_THE_END)
    except TrialOver as other:
        if other.exit_reason.kind == "ended" and other.report.get("steps"):
            reports[missing is new] = other.report
    duel.new_trace = Trace.from_report(reports[True]) if True in reports else None
    duel.old_trace = Trace.from_report(reports[False]) if False in reports else None
    if pace is None or duel.old_trace is None:
        return pace
    steps = duel.old_trace.steps
    if duel.new_trace is not None and changes_training(duel.new):
        steps = min(steps, duel.new_trace.steps)  # larger batches, fewer steps: the shorter run has to do
    return replace(pace, total_steps=steps)


def _settled(pairs: list[Pair], looks: tuple[int, ...]) -> bool:
    return decided(pairs, looks) is not None or futile(pairs, looks[-1])
