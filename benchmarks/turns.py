"""Live trials of several arms, stepped in turn, a block of each in every round; one that fails drops out alone."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import Block, ExitReason, TrialOver
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.speed import Pair, speedup
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

MODELS = Path(__file__).parent / "models"
Result = TypeVar("Result")
_BLOCK_SECONDS = 0.2
_WARM_UP_SECONDS = 0.5
_WARM_UP_STEPS = 3
_FEWEST_WARM_UP_STEPS = 20  # in the first dozen CUDA graphs are recorded, at 0.1 to 0.2 s a step ...
_LONGEST_WARM_UP_SECONDS = 5.0  # ... but of slow steps fewer


@dataclass
class Arm:
    """One way to train, and what was seen of it. `fields`: by fresh process, the seconds of a step by round."""

    name: str
    spec: TrialSpec
    fields: list[dict[int, float]] = field(default_factory=list)
    setup_seconds: float = 0.0
    peak_memory: int = 0  # bytes: on the GPU where it uses one
    left_out: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def seconds_per_step(self) -> float | None:
        seconds = [each for rounds in self.fields for each in rounds.values()]
        return statistics.median(seconds) if seconds else None


def plain(name: str, words: Sequence[str] = (), techniques: Sequence[Chosen] = ()) -> TrialSpec:
    """A model's naive script, perhaps under techniques."""
    return TrialSpec(Program(str(MODELS / f"{name}.py"), tuple(words)), tuple(techniques))


def by_hand(name: str, settings: str, words: Sequence[str] = ()) -> TrialSpec:
    """The same model as trained by somebody who knows how."""
    return TrialSpec(Program(str(MODELS / "by_hand.py"), (name, settings, *words)))


def step_in_turn(
    pool: TrialPool,
    arms: Sequence[Arm],
    rounds: int,
    deadline: float,
    together: bool = False,
    seed: int = 0,
    while_alone: Callable[[Arm, Trial, float], None] | None = None,
) -> None:
    """Fresh processes of all arms, warmed up, then `rounds` blocks of each, until `deadline` (time.monotonic()).

    Args:
        together: start all processes at once: for machines with a core for each.
        while_alone: called at the end, for each arm with its live trial and its seconds a step.
    """
    rng = random.Random(seed)
    live: dict[str, Trial] = {}
    paces: dict[str, float] = {}
    try:
        if together:
            live = {arm.name: Trial(pool, arm.spec) for arm in arms}
        for arm in arms:
            trial = live[arm.name] if together else live.setdefault(arm.name, Trial(pool, arm.spec))
            arm.fields.append({})
            paces[arm.name] = _or_drop(arm, partial(_warm_up, arm, trial, deadline)) or 0.0
        standing = [arm for arm in arms if not arm.failure]
        for turn in range(rounds):
            if turn and time.monotonic() > deadline:  # what has been warmed up makes one round at the least
                break
            for arm in rng.sample(standing, len(standing)):
                size = max(1, round(_BLOCK_SECONDS / paces[arm.name]))
                if block := _or_drop(arm, partial(live[arm.name].run, size)):
                    arm.fields[-1][turn] = block.seconds / block.steps
                    arm.peak_memory = max(arm.peak_memory, block.peak_memory)
            standing = [arm for arm in standing if not arm.failure]
        if while_alone:
            for arm in standing:
                _or_drop(arm, partial(while_alone, arm, live[arm.name], paces[arm.name]))
    finally:
        for trial in live.values():
            trial.stop()


def _warm_up(arm: Arm, trial: Trial, deadline: float) -> float:
    """To its usual pace; returns seconds a step."""
    first = trial.first_step(max(deadline, time.monotonic() + 5))
    arm.setup_seconds = min(arm.setup_seconds or first.seconds, first.seconds)
    arm.left_out.update(trial.left_out)
    seconds, steps, chunk = 0.0, 0, _WARM_UP_STEPS
    while True:
        block: Block = trial.run(chunk)
        seconds, steps = seconds + block.seconds, steps + block.steps
        enough = steps >= _FEWEST_WARM_UP_STEPS or seconds >= _LONGEST_WARM_UP_SECONDS
        if seconds >= _WARM_UP_SECONDS and enough:
            return max(1e-6, block.seconds / block.steps)
        if time.monotonic() > deadline:
            raise TrialOver(ExitReason("late", "no time was left to warm it up"))
        chunk = min(2 * chunk, 256)


def _or_drop(arm: Arm, act: Callable[[], Result]) -> Result | None:
    try:
        return act()
    except TrialOver as over:
        arm.failure = str(over.exit_reason)
        return None


def ratio(old: Arm, new: Arm) -> Interval | None:
    """How many times as fast `new` is as `old`, from the rounds that both made; processes are the sample."""
    pairs = [
        Pair(process, 1, one[turn], other[turn], True)
        for process, (one, other) in enumerate(zip(old.fields, new.fields, strict=False))
        for turn in sorted(one.keys() & other.keys())
    ]
    return speedup(pairs) if pairs else None


def ratio_text(interval: Interval | Mapping[str, float] | None) -> str:
    if interval is None:
        return "–"
    values = interval if isinstance(interval, Mapping) else vars(interval)
    return f"{values['estimate']:.2f}× [{values['low']:.2f}, {values['high']:.2f}]"
