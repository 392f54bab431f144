"""Runs a duel: as many fresh pairs of processes as it takes, and what they say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.confirmation import told
from overdrive.evidence.neighbours import MOST_BIAS, busy, share_disturbed
from overdrive.evidence.speed import LEAST_GAIN, Pair, Verdict, speedup, speedup_of_these, verdict
from overdrive.trials import interleaved
from overdrive.trials import sequential as sequential_processes
from overdrive.trials.duel import (
    FEWEST_PAIRS,
    SHORTEST_BLOCK_SECONDS,
    Duel,
    Rules,
    are_enough,
    full_processes,
    lead_steps,
    nothing_new,
)
from overdrive.trials.pool import TrialPool
from overdrive.trials.process_pair import ProcessPair

_FEWEST_TO_JUDGE = 5  # pairs
_SPARE_PAIRS = 6  # that a short program has room for: the next process may warm up longer than the last
# A gain below this is measured again by fresh processes: the place of code and data in memory alone
# has been seen to make a process a few per cent faster or slower for all its life.
CLEAR_GAIN = 1.10
# Where the allocator gives memory back in every step, processes of one program differ by half (eight of them: 7.4 to
# 11 ms a step). Beyond that, one pair of them has said enough, however many the rules ask for.
_BEYOND_PROCESSES = 1.6
_SPARE = 1.1  # by which one more pair of processes than there was to be may take longer than those before it


def run_duel(
    pool: TrialPool,
    old: TrialSpec,
    new: TrialSpec,
    rules: Rules,
    deadline: float,
    on_pair: Callable[[Duel], None] = lambda duel: None,
    sequential: bool = False,
) -> Duel:
    """Duel until the outcome is clear, the rules say stop, or `deadline` (time.monotonic()) has come.

    Args:
        sequential: run whole processes in turn, never two at once.
    """
    duel = Duel(old, new, sequential=sequential, published=rules.patient)
    run_pair = sequential_processes.run_pair if sequential else interleaved.run_pair
    if sequential:
        rules = sequential_processes.in_turn(rules)
    size: int | None = None  # steps in a block, where the program's length dictates it
    process, most, first = 0, rules.most_processes, time.monotonic()
    while process < most:
        began, before, looked = time.monotonic(), len(duel.pairs), duel.looked
        pace = run_pair(ProcessPair(pool, duel, process, rules, deadline, size, on_pair))
        took = time.monotonic() - began - (duel.looked - looked)
        duel.beside.append(took - _in_blocks(duel.pairs[before:]))
        process += 1
        if duel.exit_reason or duel.old_exit_reason:
            if pace is None or pace.total_steps is None:
                break
            duel.total_steps = pace.total_steps
            # Both came to the program's end: a short one. Fresh processes, with blocks short enough for it.
            if size is None:
                most += 1
            room = (pace.total_steps - pace.warm_steps) // (FEWEST_PAIRS + _SPARE_PAIRS)
            size = max(1, room - lead_steps(room))
            if len(duel.pairs) < FEWEST_PAIRS and size * pace.step_seconds < SHORTEST_BLOCK_SECONDS:
                made = f"{pace.total_steps} {duel.old.unit}s"
                duel.exit_reason = ExitReason("ended", f"it is over after {made}, too few to measure")
                break
            duel.exit_reason = duel.old_exit_reason = None
        judge(duel, rules)
        if time.monotonic() + duel.old_side.setup_seconds + duel.new_side.setup_seconds > deadline:
            break  # another pair would only have started by then
        if duel.verdict is Verdict.SLOWER and (rules.selects or not rules.patient):
            break
        if rules.selects and not sequential and (gains_too_little(duel) or _left_out(duel)):
            break
        if pace is None or (not rules.patient and beyond_doubt(duel)):
            break
        if full_processes(duel.kept()) >= rules.processes and _is_over(duel, rules):
            break
        each = (time.monotonic() - first - duel.looked) / process
        if rules.patient and process >= rules.processes and time.monotonic() + _SPARE * each > deadline:
            break  # by the clock alone: what the pairs so far say has no part in it
    judge(duel, rules)
    return duel


def _in_blocks(pairs: Sequence[Pair]) -> float:
    """Seconds of their blocks, and of the steps before these that nobody times."""
    return sum((each.seconds_a + each.seconds_b) * (1 + lead_steps(each.steps) / each.steps) for each in pairs)


def _is_over(duel: Duel, rules: Rules) -> bool:
    if rules.patient:
        return False  # nothing that its pairs of processes say ends it
    if duel.verdict is Verdict.FASTER:
        assert duel.interval is not None
        return duel.interval.low > CLEAR_GAIN or len({pair.process for pair in duel.pairs}) > 1
    return True


def gains_too_little(duel: Duel) -> bool:
    """Whether its processes so far gained less than what would be adopted. To end here makes no claim larger."""
    kept = duel.kept()
    return are_enough(kept) and speedup_of_these(kept).estimate < 1 + LEAST_GAIN


def _left_out(duel: Duel) -> bool:
    return duel.new_trace is not None and nothing_new(duel, duel.new_trace)


def beyond_doubt(duel: Duel) -> bool:
    """Whether the gain is larger than processes of one program differ."""
    if duel.sequential or duel.interval is None:
        return False
    return duel.verdict is Verdict.FASTER and duel.interval.low > _BEYOND_PROCESSES


def judge(duel: Duel, rules: Rules) -> None:
    """Note what its pairs so far say."""
    kept = duel.kept()
    published = rules.patient or duel.sequential
    if len(kept) >= _FEWEST_TO_JUDGE:
        # One or two processes cannot know how much processes differ. A selection takes them as they are
        # (its interval is of these processes); what is published comes from a confirmation with more.
        duel.interval = speedup(kept) if published else speedup_of_these(kept)
        duel.verdict = verdict(speedup(kept, 1 - rules.alpha) if published else duel.interval)
        if published and duel.verdict is Verdict.FASTER:
            duel.interval = told(duel.interval, len({pair.process for pair in kept}))
    few = not are_enough(kept) and duel.interval is not None and (published or duel.interval.low < CLEAR_GAIN)
    if few and duel.verdict is Verdict.FASTER:
        duel.verdict = Verdict.INCONCLUSIVE
    # Then a neighbour may have slowed one side more than the other (evidence/neighbours.py, MOST_BIAS).
    if busy(share_disturbed(duel.pairs)) and (duel.interval is None or duel.interval.low <= MOST_BIAS):
        duel.verdict = Verdict.INCONCLUSIVE
