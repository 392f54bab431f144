"""Records a program's steps in detail, in a copy of its own: what its operators count, how long they take, which lines
read tensors back, memory, a trace.

What cannot be recorded never takes the rest with it: a copy that ends too soon, or fails in a step that is recorded,
is started again for what is still missing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.insight.profile.measured import Measured
from overdrive.insight.profile.warming import warm
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

RECORDED = ("counts", "operators", "lines", "trace")  # in this order
_MOST_CALLS = 40_000  # of operators, that are recorded: reading them takes about 50 us each
_MOST_STEPS = 30
_MOST_SECONDS = 20.0  # of steps whose operators are recorded, as long as they are when nothing is
_LONG_STEP = 3.0  # seconds, from which one step alone is watched
_WATCHED_SECONDS = 4.0  # for an evaluation to come by


def record(pool: TrialPool, plain: TrialSpec, found: Measured, watch: bool) -> None:
    """`watch`: run on for a while, where lines are watched."""
    missing = list(RECORDED)
    while missing:
        why = "the program ended before"
        try:
            _copy(pool, plain, found, missing, watch)
        except TrialOver as over:
            if not _ended(over):
                why = f"the program failed ({over.exit_reason})"
        still = [what for what in missing if what not in found.recorded and what not in found.not_recorded]
        if still == missing:
            break  # another copy would come no further
        missing = still
    found.not_recorded |= dict.fromkeys(missing, why)


def _ended(over: TrialOver) -> bool:
    """Whether it came to the end of the steps that are profiled: who evaluates may begin to train."""
    return over.exit_reason.by_itself or over.exit_reason.kind == "trains"


def _copy(pool: TrialPool, plain: TrialSpec, found: Measured, missing: list[str], watch: bool) -> None:
    trial = Trial(pool, replace(plain, profiling="details"))
    try:
        trial.first_step()
        warm(trial, found.length)
        found.facts = found.facts or trial.facts()
        left = None if found.length is None else found.length - trial.step
        short = found.step > _LONG_STEP or (left is not None and left <= 16)
        steps = {"counts": 1, "lines": 1 if short else 3, "trace": 1 if short else 2}
        for what in missing:
            if what == "operators":
                others = 0 if left is None else sum(steps[each] for each in missing if each != what)
                steps[what] = _steps_of_operators(found, None if left is None else left - others - 1)
            _record(trial, found, what, steps[what])
            if what == "trace":
                found.trace = str(pool.recordings / "trace.json")
        with suppress(TrialOver):  # costs of items are a help, and the program may have no step left
            found.facts = trial.facts(costs=True)  # before it runs on, which may be to its end
        if watch and "lines" in missing:
            with suppress(TrialOver):
                _run_on(trial, found)
    finally:
        trial.stop()


def _steps_of_operators(found: Measured, left: int | None) -> int:
    cells = found.details.get("counts", {}).get("cells", ())
    calls = sum(cell["calls"] for cell in cells) or _MOST_CALLS / 5
    steps = min(_MOST_STEPS, _MOST_CALLS / calls, _MOST_SECONDS / max(found.step, 1e-6))
    return int(max(1, steps if left is None else min(steps, left)))


def _record(trial: Trial, found: Measured, what: str, steps: int) -> None:
    try:
        block = trial.run(steps, record=what)
    except TrialOver as over:
        if not _ended(over):
            found.not_recorded[what] = f"the program failed while that was recorded ({over.exit_reason})"
        raise
    _take(trial, found)
    found.walls[what] = block.seconds / block.steps
    found.recorded[what] = block.steps


def _take(trial: Trial, found: Measured) -> None:
    """What was recorded in this copy, beside that of those before."""
    now = trial.recorded()
    left_out = {**found.details.get("left_out", {}), **now.get("left_out", {})}
    found.details = {**found.details, **now, "left_out": left_out}


def _run_on(trial: Trial, found: Measured) -> None:
    """Run on for a while, and watch for rare events (an evaluation, say)."""
    began = time.monotonic()
    size = max(1, round(0.5 / max(found.step, 1e-6)))
    while time.monotonic() - began < _WATCHED_SECONDS:
        if found.length is not None:
            size = min(size, found.length - trial.step)
            if size < 1:
                break
        trial.run(size)
        _take(trial, found)
