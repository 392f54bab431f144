"""What a search claims of programs whose truth is known: nothing of parameters that do nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.hyperparameters import SCHEDULE, ValuePlace
from overdrive.core.search_result import Tried, marks_of
from overdrive.core.settings import Value
from overdrive.report.search import notes, sentence
from overdrive.search.parameters import Parameter

pytest.importorskip("optuna")

from tests.search.simulated import PARAMETERS, Simulated, searched


def nothing(values: Mapping[str, Value], chance: random.Random) -> float:
    """A metric that is chance alone."""
    return 90 + chance.gauss(0, 1)


def learning_rate(values: Mapping[str, Value], chance: random.Random) -> float:
    """Best at 0.1, where it is three standard deviations better than with the default 0.01."""
    return 93 - 3 * (math.log10(float(values["lr"])) + 1) ** 2 + chance.gauss(0, 1)


@pytest.mark.long
def test_of_100_searches_over_parameters_that_do_nothing_at_most_5_claim_a_gain(tmp_path: Path) -> None:
    claimed, apparent = 0, 0
    for number in range(100):
        result = searched(Simulated(nothing, number), tmp_path / f"{number}.journal", seed=number)
        claimed += result.verdict == "better"
        apparent += result.comparison is not None and result.comparison.apparent > 1
    assert claimed <= 5
    assert apparent > 50  # most searches showed a gain of a standard deviation and more, which was selection


def test_a_parameter_that_does_something_is_found_and_named(tmp_path: Path) -> None:
    results = [searched(Simulated(learning_rate, n), tmp_path / f"{n}.journal", seed=n) for n in range(10)]
    better = [result for result in results if result.verdict == "better"]
    assert len(better) >= 7
    assert all(float(result.chosen["lr"]) > 0.02 for result in better)
    assert all(result.comparison and result.comparison.gain.low > 0 for result in better)


def test_how_much_of_a_gain_was_selection_is_told(tmp_path: Path) -> None:
    result = searched(Simulated(nothing, 3), tmp_path / "journal", seed=3)
    assert result.verdict == "no better" and result.comparison
    assert result.comparison.apparent > result.comparison.gain.estimate
    assert any("luck" in note for note in notes(result))
    assert sentence(result).startswith("No better than your defaults")


def test_where_seeds_change_nothing_there_is_one_comparison_and_no_interval(tmp_path: Path) -> None:
    result = searched(Simulated(lambda values, chance: -abs(float(values["lr"]) - 0.1), 0), tmp_path / "journal")
    assert result.verdict == "not established" and result.comparison and len(result.comparison.seeds) > 1
    assert result.comparison.gain.low == -math.inf and result.comparison.gain.estimate > 0
    assert "seeds change nothing about it, so that there is one comparison" in sentence(result)


class Coarse(Simulated):
    """Told in whole hundredths, as of a test on a hundred samples; its training differs from seed to seed."""

    def __init__(self, gain: float) -> None:
        super().__init__(lambda values, chance: 0.9 + gain * (float(values["lr"]) > 0.02), 0)

    def run(self, values: Mapping[str, Value], seed: int, *given: Any) -> Tried:
        made = super().run(values, seed, *given)
        seen = ((0.3, 0.88), (0.4, 0.89), (1.0, made.metric or 0.0))
        return replace(made, seen=seen, losses=marks_of([2.0 + seed, 1.0]), printed=marks_of([0.88, 0.89]))


def test_where_a_metric_is_too_coarse_to_show_the_seeds_its_step_is_the_interval(tmp_path: Path) -> None:
    """It was said that seeds change nothing, and that there was one comparison."""
    result = searched(Coarse(0.05), tmp_path / "journal")
    assert result.verdict == "better" and result.comparison and len(result.comparison.seeds) > 1
    gain = result.comparison.gain
    assert (gain.low, gain.estimate, gain.high) == pytest.approx((0.04, 0.05, 0.06))
    assert not any("seeds changed nothing" in note for note in notes(result))


def test_a_gain_of_one_step_of_the_metric_may_be_nothing(tmp_path: Path) -> None:
    result = searched(Coarse(0.01), tmp_path / "journal")
    assert result.verdict == "no better" and "seeds leave" in sentence(result)


def test_defaults_that_nothing_beats_are_told_without_a_comparison(tmp_path: Path) -> None:
    best_there_is = lambda values, chance: -abs(math.log10(float(values["lr"])) + 2)  # noqa: E731
    program = Simulated(best_there_is, 0)
    result = searched(program, tmp_path / "journal")
    assert result.verdict == "no better" and result.comparison is None
    assert all(seed == 0 for _, seed in program.made)  # no fresh seed was spent


def test_the_comparison_uses_seeds_that_the_search_has_not_seen_and_the_same_for_both(tmp_path: Path) -> None:
    program = Simulated(learning_rate, 1)
    result = searched(program, tmp_path / "journal")
    assert result.comparison and 0 not in result.comparison.seeds
    fresh = [(bool(values), seed) for values, seed in program.made if seed]
    assert sorted(seed for chosen, seed in fresh if chosen) == sorted(seed for chosen, seed in fresh if not chosen)


class OnAMachineThatChanges(Simulated):
    """Each run of the comparison comes to more than the one before, whatever it runs."""

    def run(self, *given: Any) -> Tried:
        made = super().run(*given)
        return replace(made, metric=float(len(self.made))) if given[1] else made


def test_which_of_a_pair_runs_first_is_changed_from_pair_to_pair(tmp_path: Path) -> None:
    """The defaults always came first: what a machine becomes faster by in the meantime was the other's gain."""
    result = searched(OnAMachineThatChanges(learning_rate, 1), tmp_path / "journal")
    assert result.verdict == "no better" and result.comparison
    ends = [[run.metric for run in runs] for runs in (result.comparison.defaults, result.comparison.chosen)]
    later = [one < other for one, other in zip(*ends, strict=True)]  # type: ignore[operator]
    assert later == [seed % 2 == 1 for seed in result.comparison.seeds]


def test_runs_that_learn_slowly_are_ended_early_and_the_first_ninth_of_each_is_made(tmp_path: Path) -> None:
    result = searched(Simulated(learning_rate, 2, curve=True), tmp_path / "journal")
    pruned = [run for run in result.trials if run.state == "pruned"]
    assert pruned and all(run.progress >= 3 for run in pruned)
    assert len(result.trials) > len(searched(Simulated(learning_rate, 2), tmp_path / "other").trials)


def test_no_run_is_ended_early_where_learning_rates_may_fall_which_tells_last(tmp_path: Path) -> None:
    fall = Parameter("anneal", (ValuePlace(SCHEDULE, "anneal", 0.0),))
    program = Simulated(learning_rate, 2, curve=True)
    result = searched(program, tmp_path / "journal", parameters=(*PARAMETERS, fall))
    assert {run.state for run in result.trials} == {"complete"}
    assert {run.values["anneal"] for run in result.trials} > {0.0, 1.0}
