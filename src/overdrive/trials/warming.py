"""The steps before a measurement: trials are brought to their usual pace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from overdrive.core.records import Block, ExitReason, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.trial import Trial

WARM_UP_STEPS = 3  # at the least: the first steps build caches of their own
LONGEST_CHUNK = 64  # steps at a time, beginning with the fewest, and each time as many as were made
WARM_UP_SECONDS = 0.5
_ENOUGH_WARM_UP_SECONDS = 2.0  # after which nobody waits for twice as many steps
# Calls that engines leave to the model while they are built and compared are made once of each size of the inputs. Of a
# GPT that generates 64 tokens, each call one token longer, blocks that began before told 0.46x of OpenVINO.
_SETTLED = 0.1  # of a chunk's calls
SETTLING_SECONDS = 15.0  # after which what ever new sizes cost is part of the measurement
# That time alone may go by while an engine is built in one call: ResNet-50's answered from the fourth call on, and
# blocks that began before told 2.58x [0.86, 7.74] of what was seven times as fast.
_SETTLING_STEPS = 8


def warmed_up(steps: int, seconds: float) -> bool:
    """Whether a side that made so many steps in so many seconds is at its usual pace."""
    usual = steps >= 2 * WARM_UP_STEPS and seconds >= WARM_UP_SECONDS
    slow = steps >= WARM_UP_STEPS and seconds >= _ENOUGH_WARM_UP_SECONDS
    return usual or slow or seconds >= 2 * _ENOUGH_WARM_UP_SECONDS


def settles_in(spec: TrialSpec) -> int:
    """Steps that its techniques take until they act as they will."""
    known = catalogue()
    return max((known[name].settling(settings) for name, settings in spec.techniques if name in known), default=0)


def settles(block: Block) -> bool:
    """Whether in much of it a technique did not act yet as it will."""
    return block.settling > _SETTLED * block.steps


def may_settle(steps: int, seconds: float) -> bool:
    """Whether what has not settled after so many steps is waited for."""
    return steps < _SETTLING_STEPS or seconds < SETTLING_SECONDS


def half_a_second(steps: int, seconds: float) -> bool:
    """The same, where all steps so far are one trial's first and nothing is decided by them."""
    return steps > 0 and seconds >= WARM_UP_SECONDS


@dataclass(frozen=True)
class Warmed:
    """
    Attributes:
        steps: that each trial has made.
        chunk: how many more show its pace.
        paces: seconds a step, by trial, in its last ones.
    """

    steps: int
    chunk: int
    paces: tuple[float, ...]


def in_time(until: float) -> None:
    """
    Raises:
        TrialOver: it is later than that (time.monotonic()).
    """
    if time.monotonic() > until:
        raise TrialOver(ExitReason("late", "its steps take longer than the budget allows"))


def warm_up(
    trials: Sequence[Trial],
    first: int = WARM_UP_STEPS,
    enough: Callable[[int, float], bool] = warmed_up,
    blamed: Callable[[Trial], AbstractContextManager[None]] = lambda trial: nullcontext(),
    until: float = math.inf,
) -> Warmed:
    """Step them in turn, as many steps each, until the slowest one is at its usual pace, and techniques have settled.

    Args:
        first: steps at a time, at the beginning.
        blamed: within it a trial steps.
        until: time.monotonic() at which it is late.

    Raises:
        TrialOver: a program ended, failed, hung or crashed before, or was late.
    """
    seconds, paces, steps, chunk = [0.0] * len(trials), [0.0] * len(trials), 0, first
    settling = max((settles_in(trial.spec) for trial in trials), default=0)
    unsettled = False
    while steps < settling or not enough(steps, max(seconds)) or (unsettled and may_settle(steps, max(seconds))):
        unsettled = False
        for index, trial in enumerate(trials):
            with blamed(trial):
                began = time.monotonic()
                block = trial.run(chunk)
                in_time(until)  # what follows would take longer yet
            seconds[index] += max(block.seconds, time.monotonic() - began)  # it may be its calls alone that are timed
            paces[index] = block.seconds / block.steps
            unsettled |= settles(block)
        steps += chunk
        chunk = min(steps, LONGEST_CHUNK)
        if unsettled and max(seconds) >= SETTLING_SECONDS and steps < _SETTLING_STEPS:
            chunk = min(chunk, _SETTLING_STEPS - steps)
    return Warmed(steps, chunk, tuple(paces))
