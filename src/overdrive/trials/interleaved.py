"""Runs the two sides of a duel interleaved: two live trials, of which one steps while the other stands still."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from overdrive.core.records import Block, Trace, TrialOver
from overdrive.evidence.neighbours import counted
from overdrive.evidence.speed import Pair, decided, futile
from overdrive.trials.duel import (
    FEWEST_SECONDS,
    LONGEST_LOOK_SECONDS,
    TO_THE_END,
    Duel,
    block_steps,
    changes_training,
    hopeless,
    lead_steps,
    nothing_new,
    profile_steps,
    steps_after_costs,
)
from overdrive.trials.process_pair import Pace, ProcessPair, blame
from overdrive.trials.trial import Trial
from overdrive.trials.warming import in_time, may_settle, settles, warm_up

_MOST_CATCHING_UP = 64  # calls until two trials stand at the same step
_LONGER = 1.5  # than its last look was reckoned to take: its steps have become longer
_OTHER_PACE = 4  # times as many steps in a block, or a quarter of them
_MOST_TIMES = 4  # as many pairs of blocks as there are to be, where a neighbour disturbs three in four


def run_pair(pair: ProcessPair) -> Pace | None:
    """Step a fresh process of each side in turn, in random order, block by block."""
    duel = pair.duel
    pace: Pace | None = None
    with ExitStack() as stack:
        old = Trial(pair.pool, pair.spec(new=False))
        stack.callback(old.stop)
        # Two that start at once delay each other: what is published tells how long one takes by itself, by its first.
        until = max(pair.deadline, time.monotonic() + FEWEST_SECONDS)
        begun = _begun(old, until) if pair.rules.patient and pair.number == 0 else None
        new = Trial(pair.pool, pair.spec(new=True))
        stack.callback(new.stop)
        try:
            with blame(duel, new=False):
                if isinstance(begun, TrialOver):
                    raise begun
                pair.started(begun or old.first_step(until), new=False)
            with blame(duel, new=True):
                until = max(until, time.monotonic() + FEWEST_SECONDS) if begun else until
                pair.started(new.first_step(until), new=True)
            if pair.rules.chooses and nothing_new(duel, new):
                duel.new_trace = new.trace()
                return None
            pace = _warm_up(duel, old, new, pair.number, costs=pair.rules.patient, until=until)
            _measure(pair, old, new, pace, until)
            _align(duel, old, new)
            if pair.keeps_losses:
                _keep_traces(pair, old, new)
        except TrialOver as over:
            if not over.trace:
                return pace
            pace = _both_to_the_end(pair, old, new, over.trace, pace)
        if pair.number == 0 and pair.rules.patient and duel.old != duel.new:
            _time_the_end(duel, old, new)
    return pace


def _measure(pair: ProcessPair, old: Trial, new: Trial, pace: Pace, until: float = math.inf) -> None:
    """Pairs of blocks, until they say enough, or the deadline or the last look has come. One is begun by `until`."""
    duel, rules, order = pair.duel, pair.rules, pair.order()
    call = max(old.call_steps, new.call_steps)
    size = -(-(pair.short_block or pace.block_steps) // call) * call
    lead = lead_steps(size, call)
    looks = rules.looks_at((lead + size) * (pace.step_seconds + pace.slower_step_seconds))
    mine: list[Pair] = []
    seconds, began = 0.0, time.monotonic()
    settling, settling_seconds = 0, 0.0
    while True:
        old_first = order.random() < 0.5
        blocks: dict[bool, Block] = {}
        for is_old in (old_first, not old_first):
            with blame(duel, new=not is_old):
                in_time(math.inf if mine else until)
                blocks[is_old] = (old if is_old else new).run(size, lead)
        # A program that calls its model to prepare something comes to the calls that an engine is built for late.
        if any(map(settles, blocks.values())) and may_settle(settling, settling_seconds):
            settling += size
            settling_seconds += blocks[True].seconds + blocks[False].seconds
            if time.monotonic() > pair.deadline:
                return
            continue
        mine.append(pair.measured(blocks[True], blocks[False], old_first))
        pair.on_pair(duel)
        kept = counted(mine)
        seconds += blocks[True].seconds + blocks[False].seconds
        # Of an inference program it may be calls alone that are timed, which are a small part of its time.
        if max(seconds, time.monotonic() - began) > _LONGER * LONGEST_LOOK_SECONDS and len(kept) >= looks[0]:
            return
        if pair.short_block is None:
            size = _resized(size, mine, call)
            lead = lead_steps(size, call)
        if time.monotonic() > pair.deadline or len(kept) >= looks[-1] or len(mine) >= _MOST_TIMES * looks[-1]:
            return
        if rules.chooses and nothing_new(duel, new):
            return
        if not rules.patient and (hopeless(kept) or (len(kept) in looks and _settled(kept, looks))):
            return


def _resized(size: int, pairs: Sequence[Pair], call: int) -> int:
    """Steps in the next blocks: others than before where the program's steps have become far longer or shorter.

    Of a public actor-critic an episode is a step. It takes 8 ms at first, and half a second when the pole stays up.
    """
    recent = pairs[-3:]
    fast, slow = (
        statistics.median(of(each.seconds_a, each.seconds_b) / each.steps for each in recent) for of in (min, max)
    )
    wanted = -(-block_steps(fast, slow) // call) * call
    usual = size / _OTHER_PACE < wanted < size * _OTHER_PACE
    return size if usual or len(recent) < 3 else wanted


def _begun(trial: Trial, until: float) -> Block | TrialOver:
    try:
        return trial.first_step(until)
    except TrialOver as over:
        return over


def _warm_up(duel: Duel, old: Trial, new: Trial, process: int, costs: bool, until: float) -> Pace:
    """Step both until they are at their usual pace; the same number of steps on both sides.

    Args:
        costs: have the first process find out what an item of its data costs.
    """
    warmed = warm_up((old, new), first=1, blamed=lambda trial: blame(duel, new=trial is new), until=until)
    steps, slowest = warmed.steps, max(warmed.paces)
    if process == 0:
        with duel.looking():
            steps += _look_into(duel, old, new, slowest, costs, until)
    return Pace(steps + 1, min(warmed.paces), slowest)


def _look_into(duel: Duel, old: Trial, new: Trial, step_seconds: float, costs: bool, until: float) -> int:
    """Have the program's facts noted, as far as that begins before `until`; the steps that both make for that."""
    steps = profile_steps(step_seconds)
    for trial in (old, new):
        with blame(duel, new=trial is new):
            in_time(until)
            trial.run(steps, profile=True)
    with blame(duel, new=False):
        duel.old_facts = old.facts(costs)
    if not costs:
        return steps
    again = steps_after_costs(step_seconds)
    for trial in (old, new):
        with blame(duel, new=trial is new):
            in_time(until)
            trial.run(again)
    return steps + again


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


def _keep_traces(pair: ProcessPair, old: Trial, new: Trial) -> None:
    duel = pair.duel
    with blame(duel, new=True):
        duel.new_trace = new.trace()
        if pair.number == 0:
            with duel.looking():
                duel.new_facts = new.facts(pair.rules.patient and bool(duel.new.techniques))
    with blame(duel, new=False):
        duel.old_trace = old.trace()


def _time_the_end(duel: Duel, old: Trial, new: Trial) -> None:
    """What a whole run takes after its last step, for the same reason as its start."""
    duel.old_side = replace(duel.old_side, end_seconds=old.end() or 0.0)
    duel.new_side = replace(duel.new_side, end_seconds=new.end() or 0.0)


def _both_to_the_end(pair: ProcessPair, old: Trial, new: Trial, trace: Trace, pace: Pace | None) -> Pace | None:
    """The program is over on one side, with this trace; let the other come to its end too, and keep both traces."""
    duel = pair.duel
    traces = {duel.exit_reason is not None: trace}
    missing = old if duel.exit_reason is not None else new
    try:
        with blame(duel, new=missing is new):
            missing.run(TO_THE_END, until=max(pair.deadline, time.monotonic() + FEWEST_SECONDS))
    except TrialOver as other:
        if other.trace:
            traces[missing is new] = other.trace
    old_trace, new_trace = traces.get(False), traces.get(True)
    if pair.keeps_losses:
        duel.old_trace, duel.new_trace = old_trace, new_trace
    if pace is None or old_trace is None or new_trace is None:
        return pace  # one of them failed on its way to the end, which is its exit reason
    steps = old_trace.steps
    if changes_training(duel.new):
        steps = min(steps, new_trace.steps)  # larger batches, fewer steps: the shorter run has to do
    return replace(pace, total_steps=steps)


def _settled(pairs: list[Pair], looks: tuple[int, ...]) -> bool:
    return decided(pairs, looks) is not None or futile(pairs, looks[-1])
