"""The absolute figures of one side of a duel, from the same blocks as the duel's ratio."""

from __future__ import annotations

from collections.abc import Iterable

from overdrive.core.call_sizes import CallSize, call_sizes
from overdrive.core.tune_result import Figures
from overdrive.evidence.latency import percentiles
from overdrive.evidence.speed import seconds_per_step
from overdrive.trials.duel import Duel, changes_training


def step_time(duel: Duel) -> float:
    """Seconds of a step of the program as it is: as the duel has measured it, else as its process told."""
    measured = figures(duel, new=False)
    return (measured.seconds_per_step if measured else 0.0) or duel.old_side.seconds_per_step


def figures(duel: Duel, new: bool, start: float | None = None) -> Figures | None:
    """Samples per second and what else is told of a side; None where nothing was measured.

    Args:
        start: seconds that the user's own command takes to the beginning of his code; None: as long as a trial's.

    A step has as many samples on both sides, unless a technique changes the training itself: where steps are made in
    groups the sides stand at other steps of an epoch, and the short batch at its end must not count as speed.
    """
    kept = duel.kept()
    if not kept:
        return None
    old, side = duel.old_side, duel.new_side if new else duel.old_side
    seconds = seconds_per_step(kept)[new]
    # Only of batches that a loader made: an input's first dimension may be anything, such as the length of a sequence.
    samples = old.samples / old.steps if old.samples else 0.0
    rate = samples / seconds if samples and duel.old.timed == "step" else None  # else of the calls alone
    if new and changes_training(duel.new) and old.samples and side.samples:
        seconds *= side.samples / side.steps / samples  # pairs hold the time of as many samples as the old side's step
    half, most = percentiles([(pair.process, pair.calls[new]) for pair in kept])
    first = side.first_step_seconds if new else side.own_first_step_seconds
    setup = side.setup_seconds if start is None else start + first
    end, memory = side.end_seconds or None, side.peak_memory or None
    return Figures(rate, seconds, setup, end, memory, half=half, most=most)


def sizes_of_calls(duels: Iterable[Duel | None]) -> tuple[CallSize, ...]:
    """What the program's own calls were given, by the longest of its runs in these duels."""
    traces = [duel.old_trace for duel in duels if duel and duel.old_trace]
    longest = max(traces, key=lambda trace: trace.steps, default=None)
    return call_sizes(longest.call_sizes) if longest else ()
