"""What a budget holds: runs that take longer than the defaults, their comparison, and gains at equal wall clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.metric import Metric
from overdrive.core.search_result import Tried, marks_of
from overdrive.core.settings import Value
from overdrive.report.search import notes, sentence
from overdrive.search.goal import Goal, GoalError
from overdrive.search.runs import OnProgress

pytest.importorskip("optuna")

from tests.search.simulated import PARAMETERS, Simulated, searched

OWN = {each.name: each.default for each in PARAMETERS}


class Slower(Simulated):
    """Small batches take longer, and are better at their end; they are given up after `seconds`, as real ones."""

    def __init__(self, times: float, by_then: float = 80.0, fails: bool = False) -> None:
        """
        Args:
            times: as long as the defaults where the batch is less than theirs.
            by_then: the metric of such a run when a default run is over.
            fails: under fresh seeds.
        """
        super().__init__(lambda values, chance: 90.0 + chance.gauss(0, 0.1), 0)
        self.times, self.by_then, self.fails = times, by_then, fails
        self.longest = 0.0

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        found = super().run(values, seed, seconds, watch)
        small = float({**OWN, **values}["batch-size"]) < 64
        took = self.times if small else 1.0
        self.longest = max(self.longest, min(took, seconds))
        if took > seconds or (small and seed and self.fails):
            return replace(found, state="failed", metric=None, seconds=min(took, seconds), why="too long")
        metric = (found.metric or 0.0) + (5 if small else 0)
        seen = ((0.5 * took, self.by_then), (took, metric)) if small else ((took, metric),)
        return replace(found, metric=metric, seconds=took, seen=() if watch else seen)


class LateFind(Simulated):
    """Nothing is better than the defaults before the run of this number; then all of that batch size is."""

    def __init__(self, number: int) -> None:
        super().__init__(lambda values, chance: 90.0 + chance.gauss(0, 0.01), 0)
        self.number, self.best = number, -1.0

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        found = super().run(values, seed, seconds, watch)
        lr = float({**OWN, **values}["lr"])
        if values and len(self.made) == self.number:
            self.best = lr
        metric = (found.metric or 0.0) + (5 if lr == self.best else 0)
        return replace(found, metric=metric if lr == self.best or not values else metric - 1)


def test_the_budget_holds_the_comparison_of_one_that_takes_longer(tmp_path: Path) -> None:
    result = searched(Slower(3.0), tmp_path / "journal", budget=50.0)
    assert result.comparison and float(result.chosen["batch-size"]) < 64
    assert result.spent <= 50.0 and len(result.comparison.seeds) >= 3


def test_one_that_takes_too_long_to_be_compared_is_passed_over_and_named(tmp_path: Path) -> None:
    result = searched(Slower(3.9), tmp_path / "journal", budget=20.0)
    assert result.spent <= 21.0
    assert not result.chosen or float(result.chosen["batch-size"]) >= 64
    assert "looked better, but a run of it takes 3.9 s: to compare it takes --budget 1m." in result.notes[0]


def test_the_time_for_a_slower_best_one_is_kept_once_it_is_found(tmp_path: Path) -> None:
    """It was found early, and its comparison had no time in the end."""
    result = searched(Slower(2.0), tmp_path / "journal", budget=20.0)
    assert result.comparison and float(result.chosen["batch-size"]) < 64 and len(result.comparison.seeds) >= 3
    assert result.spent <= 20.0 and not result.notes


def test_no_run_goes_on_into_the_time_of_the_comparison(tmp_path: Path) -> None:
    result = searched(Slower(3.5), tmp_path / "journal", budget=20.0)
    assert result.spent - sum(run.seconds for run in result.trials) <= 9.0
    cut = [run for run in result.trials if run.why == "the time of the search was over"]
    assert cut and all(run.state == "pruned" for run in cut)
    assert sum(run.seconds for run in result.trials) <= 14.0 + 0.3  # of 20 less 6 for three pairs


def test_a_search_that_has_found_nothing_looks_on_in_half_of_the_time_of_the_comparison(tmp_path: Path) -> None:
    found = searched(Simulated(lambda values, chance: 90.0 + float(values["lr"]), 0), tmp_path / "found", budget=50.0)
    assert found.comparison and len(found.comparison.seeds) == 10 and len(found.trials) <= 30
    nothing = searched(Simulated(lambda values, chance: 90.0, 0), tmp_path / "nothing", budget=50.0)
    assert nothing.comparison is None and len(nothing.trials) > 35 and nothing.spent <= 41.0
    late = searched(LateFind(32), tmp_path / "late", budget=50.0)
    assert late.verdict == "better" and late.comparison and len(late.comparison.seeds) >= 5 and late.spent <= 51.0


class Sooner(Simulated):
    """Larger rates come to the target sooner."""

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        took = 0.6 if float({**OWN, **values}["lr"]) > 0.011 else 1.0
        return replace(super().run(values, seed, seconds, watch), seconds=took, reached=took)


def test_what_a_comparison_of_a_sooner_one_needs_less_the_search_has(tmp_path: Path) -> None:
    program = Sooner(lambda values, chance: 90.0, 0)
    result = searched(program, tmp_path / "journal", budget=30.0, goal=Goal(True, 90.0))
    assert result.comparison and len(result.comparison.seeds) == 6  # as many as ever
    assert sum(run.seconds for run in result.trials) > 17.0  # 30 less 1 for the defaults, less 12 for the pairs: 17
    assert result.spent <= 30.0


class OnTheWay(Sooner):
    """What is printed before the target differs by `spread` from seed to seed, and times by a little in any case."""

    def __init__(self, spread: float, default_arrives: bool = True) -> None:
        super().__init__(lambda values, chance: 90.0, 0)
        self.spread, self.default_arrives = spread, default_arrives

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        found = super().run(values, seed, seconds, watch)
        took = found.seconds + 0.001 * seed
        printed = [80.0 + self.spread * seed, 85.0, 90.0]
        seen = tuple((took, metric) for metric in printed[seed % 2 :])  # whoever looks seldom has missed some
        if took > 0.9 and not self.default_arrives:
            return replace(found, metric=80.0, seconds=took, reached=None, printed=marks_of(printed[:1]))
        return replace(found, seconds=took, reached=took, seen=seen, printed=marks_of(printed))


def test_no_time_to_a_target_is_established_where_seeds_change_nothing(tmp_path: Path) -> None:
    """The times differ all the same."""
    goal = Goal(True, 90.0)
    same = searched(OnTheWay(0.0), tmp_path / "same", budget=30.0, goal=goal)
    assert same.verdict == "not established" and same.comparison
    assert same.comparison.gain.estimate == pytest.approx(0.4)
    assert "seeds change nothing about it" in sentence(same) and sentence(same).endswith("its gain in that is 0.4 s.")
    assert searched(OnTheWay(0.1), tmp_path / "other", budget=30.0, goal=goal).verdict == "better"


def test_a_default_that_never_arrives_counts_in_the_searchs_gain_as_on_fresh_seeds(tmp_path: Path) -> None:
    """It was counted with four times its seconds and more, and most of that was told as luck of the selection."""
    result = searched(OnTheWay(0.1, False), tmp_path / "journal", budget=40.0, goal=Goal(True, 90.0))
    assert result.verdict == "better" and result.comparison
    assert result.comparison.apparent == pytest.approx(0.4) == result.comparison.gain.estimate


def test_a_comparison_that_can_establish_nothing_is_not_gone_on_with(tmp_path: Path) -> None:
    result = searched(Slower(1.0, fails=True), tmp_path / "journal", budget=50.0)
    assert result.verdict == "not established" and result.comparison
    assert len(result.comparison.seeds) == 1


def test_a_gain_that_takes_longer_is_told_as_that(tmp_path: Path) -> None:
    slower = searched(Slower(2.0), tmp_path / "slower", budget=50.0)
    assert slower.verdict == "better" and slower.comparison and slower.comparison.equal
    assert slower.comparison.equal.high < 0  # when the defaults were over
    assert sentence(slower).startswith("Better than your defaults, in 2.0 times their time, on ")
    assert any("when these were over, its gain was -10" in note for note in notes(slower))
    ahead = searched(Slower(2.0, by_then=94.0), tmp_path / "ahead", budget=50.0)
    assert ahead.comparison and ahead.comparison.equal and ahead.comparison.equal.low > 0
    assert sentence(ahead).startswith("Better than your defaults on ")
    alike = searched(Slower(1.0), tmp_path / "alike", budget=50.0)
    assert alike.comparison and alike.comparison.equal is None


def test_the_best_after_a_time_is_a_goal() -> None:
    metric = Metric("Accuracy")
    assert Goal.parse("best in 1m30s", metric) == Goal(True, within=90.0)
    assert Goal.parse("best within 2 h", metric).within == 7200
    assert Goal.parse("best", metric).within == 0 and not Goal.parse("best", metric).timed
    for wrong in ("best in 3", "best in", "best in 0s"):
        with pytest.raises(GoalError, match="'best in 10m'"):
            Goal.parse(wrong, metric)
