"""Before a measurement, trials come to their usual pace, and techniques settle."""

from __future__ import annotations

from typing import Any

from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.warming import settles_in, warm_up


class Stepped:
    """A trial whose steps take a second each."""

    def __init__(self, *techniques: Chosen) -> None:
        self.spec = TrialSpec(Program("train.py"), techniques)
        self.steps = 0

    def run(self, count: int) -> Any:
        self.steps += count
        return type("Block", (), {"seconds": float(count), "steps": count})


def test_what_records_its_first_steps_is_not_measured_while_it_does() -> None:
    """On an H100 first rounds came to 0.1 to 0.2 s a step, of programs whose steps take 0.002 to 0.05."""
    plain, graphs = Stepped(), Stepped(("cuda_graphs", {}))
    assert settles_in(plain.spec) == 0 < settles_in(graphs.spec)
    assert warm_up([Stepped()]).steps == 3  # type: ignore[list-item]
    warmed = warm_up([plain, graphs])  # type: ignore[list-item]
    assert warmed.steps == plain.steps == graphs.steps >= settles_in(graphs.spec)


def test_a_technique_that_nobody_knows_settles_at_once() -> None:
    assert settles_in(Stepped(("of_yesterday", {})).spec) == 0
