"""Before a measurement, trials come to their usual pace, and techniques settle."""

from __future__ import annotations

import math
from typing import Any

from overdrive.core.program import Program
from overdrive.core.records import Block
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.warming import SETTLING_SECONDS, settles_in, warm_up


class Stepped:
    """A trial whose steps take a second each."""

    def __init__(self, *techniques: Chosen, settles: float = 0, seconds: float = 1.0) -> None:
        self.spec = TrialSpec(Program("train.py"), techniques)
        self.steps = 0
        self._settles, self._seconds = settles, seconds

    def run(self, count: int) -> Any:
        settling = int(max(0.0, min(count, self._settles - self.steps)))
        self.steps += count
        return Block(self.steps, count, count * self._seconds, float(count), settling=settling)


def test_what_records_its_first_steps_is_not_measured_while_it_does() -> None:
    """On an H100 first rounds came to 0.1 to 0.2 s a step, of programs whose steps take 0.002 to 0.05."""
    plain, graphs = Stepped(), Stepped(("cuda_graphs", {}))
    assert settles_in(plain.spec) == 0 < settles_in(graphs.spec)
    assert warm_up([Stepped()]).steps == 3  # type: ignore[list-item]
    warmed = warm_up([plain, graphs])  # type: ignore[list-item]
    assert warmed.steps == plain.steps == graphs.steps >= settles_in(graphs.spec)


def test_a_technique_that_nobody_knows_settles_at_once() -> None:
    assert settles_in(Stepped(("of_yesterday", {})).spec) == 0


def test_calls_whose_engine_is_not_there_yet_are_not_measured() -> None:
    """Of a GPT that generates 64 tokens each size is made by the model twice: 0.46x was told of what gained."""
    plain, served = Stepped(seconds=0.01), Stepped(settles=200, seconds=0.01)
    warmed = warm_up([plain, served])  # type: ignore[list-item]
    assert 200 <= warmed.steps == plain.steps == served.steps < 400


def test_an_engine_that_is_built_for_long_is_waited_for_all_the_same() -> None:
    """Of a ResNet-50 its first call took that long alone, and blocks began while its next ones were compared."""
    served = Stepped(settles=5, seconds=20.0)
    assert warm_up([served]).steps >= 5  # type: ignore[list-item]
    never = Stepped(settles=math.inf, seconds=20.0)
    assert warm_up([never]).steps == 8  # type: ignore[list-item]


def test_what_never_settles_is_measured_as_it_is() -> None:
    served = Stepped(settles=math.inf, seconds=0.01)
    warmed = warm_up([served])  # type: ignore[list-item]
    assert SETTLING_SECONDS <= warmed.steps * 0.01 < 2 * SETTLING_SECONDS
