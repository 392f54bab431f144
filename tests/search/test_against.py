"""A metric set against a cost: what is cheaper and as good is found, and not claimed where it is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.search_result import SearchResult, Tried
from overdrive.core.settings import Value
from overdrive.search.goal import Goal
from overdrive.search.runs import OnProgress
from overdrive.search.search import CannotSearch

pytest.importorskip("optuna")

from tests.search.simulated import PARAMETERS, Quality, Simulated, searched

OWN = {each.name: each.default for each in PARAMETERS}
FEWER = Goal(True, against="parameters")
Price = Callable[[Mapping[str, Value]], float]


class Priced(Simulated):
    def __init__(self, quality: Quality, price: Price, chance: int = 0) -> None:
        super().__init__(quality, chance, curve=True)
        self._price = price

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        assert watch is None  # none is ended early: the cheap ones would be
        return replace(super().run(values, seed, seconds, watch), cost=self._price({**OWN, **values}) or None)


def width(values: Mapping[str, Value]) -> float:
    return 100.0 * float(values["width"])


def noise(values: Mapping[str, Value], chance: random.Random) -> float:
    return 90 + chance.gauss(0, 0.2)


def needs_12(values: Mapping[str, Value], chance: random.Random) -> float:
    """Below a width of 12 each unit costs a tenth."""
    return 90 - 0.1 * max(0.0, 12 - float(values["width"])) + chance.gauss(0, 0.02)


def least(program: Priced, journal: Path, budget: float = 50.0) -> SearchResult:
    return searched(program, journal, budget, goal=FEWER)


def test_the_cheapest_that_is_as_good_is_chosen_and_compared(tmp_path: Path) -> None:
    result = least(Priced(needs_12, width, 1), tmp_path / "journal")
    assert result.verdict in ("cheaper", "better") and result.comparison and result.comparison.cost
    assert result.chosen["width"] == 16 and result.comparison.cost.estimate == pytest.approx(0.5)
    assert result.comparison.cost.high < 1 and result.spent <= 50.0
    again = least(Priced(needs_12, width, 1), tmp_path / "journal", budget=60.0)  # it goes on
    assert again.trials[: len(result.trials)] == result.trials


def test_a_cost_that_nothing_moves_is_not_claimed(tmp_path: Path) -> None:
    for number in range(5):
        result = least(Priced(noise, lambda values: 3200.0, number), tmp_path / str(number), budget=30.0)
        assert result.verdict == "no better" and not result.chosen


def test_what_is_worse_on_fresh_seeds_is_not_called_cheaper(tmp_path: Path) -> None:
    """In the search, by its one seed, less width looks as good."""

    class Misleading(Priced):
        def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
            found = super().run(values, seed, seconds, watch)
            lost = 0.1 * (32 - min(32.0, float({**OWN, **values}["width"])))
            return replace(found, metric=(found.metric or 0.0) - (lost if seed else -lost))

    result = least(Misleading(lambda values, chance: 90 + chance.gauss(0, 0.01), width), tmp_path / "journal")
    assert result.comparison and result.comparison.gain.high < 0
    assert result.verdict == "no better"


def test_without_a_step_there_is_no_cost(tmp_path: Path) -> None:
    with pytest.raises(CannotSearch, match="Accuracy cannot be set against parameters: no step was seen"):
        least(Priced(noise, lambda values: 0.0), tmp_path / "journal")
