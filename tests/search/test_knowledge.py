"""What is asked before the first configuration: only what is cheap beside the configurations tried instead of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.batch_curve import BatchCurve, BatchSize
from overdrive.core.metric import Metric
from overdrive.core.search_result import Tried
from overdrive.search import knowledge
from overdrive.search.domain import domain_of
from overdrive.search.goal import Goal
from overdrive.search.range_test import RangeTest
from overdrive.search.search import Search

pytest.importorskip("optuna")

from overdrive.search.engine import Engine
from tests.search.simulated import BEST, PARAMETERS

EIGHT_SECONDS = Tried(0, {}, "complete", 90.0, 8.0, steps=752, seen=((4.5, 60.0), (8.0, 90.0)), start=3.0)
RUNS: Any = SimpleNamespace(
    pool=None, program=None, techniques=(), found=SimpleNamespace(facts=None), launcher=lambda: None
)
CURVE = BatchCurve("train.py", 64, 500.0, False, (BatchSize(64, 0.1, 1, 1, 1), BatchSize(128, 0.1, 0.5, 0.5, 2.0)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were put."""
    put: list[str] = []

    def range_test(*given: object) -> RangeTest:
        put.append("rate")
        return RangeTest(4.0, 100.0)

    def batch_curve(*given: object) -> BatchCurve:
        put.append("sizes")
        return CURVE

    monkeypatch.setattr(knowledge, "range_test", range_test)
    monkeypatch.setattr(knowledge, "batch_curve", batch_curve)
    return put


@pytest.fixture
def order(tmp_path: Path) -> Iterator[Callable[..., Search]]:
    """A search of this budget, which has made its default run."""
    domains = {each.name: domain_of(each) for each in PARAMETERS}
    engine = Engine(tmp_path / "journal", domains, 0)
    engine.remember("defaults", EIGHT_SECONDS)

    def made(budget: float, goal: Goal = BEST) -> Search:
        run: Any = None  # none is made here
        return Search(PARAMETERS, domains, Metric("Accuracy"), goal, budget, engine, run, lambda text: None)

    yield made
    engine.close()


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (80.0, []),  # ten runs: one for the defaults, six to compare, three to try
        (160.0, ["rate"]),
        (500.0, ["rate", "sizes"]),
    ],
)
def test_a_question_is_put_where_it_is_cheap_beside_what_is_tried_instead(
    budget: float, expected: list[str], asked: list[str], order: Callable[..., Search]
) -> None:
    said = knowledge.begin_with_knowledge(order(budget), RUNS, EIGHT_SECONDS)
    assert asked == expected and len(said) == len(expected)


def test_what_is_learned_of_one_parameter_is_tried_with_the_authors_values_of_the_others(
    asked: list[str], order: Callable[..., Search]
) -> None:
    search = order(500.0)
    knowledge.begin_with_knowledge(search, RUNS, EIGHT_SECONDS)
    tried = [search.engine.ask() for _ in range(3)]
    own = {each.name: each.default for each in PARAMETERS}
    assert [each and each[1] for each in tried] == [
        {**own, "lr": 0.004},
        {**own, "lr": 0.001},
        {**own, "lr": 0.02, "batch-size": 128},
    ]


def test_it_is_put_once(asked: list[str], order: Callable[..., Search]) -> None:
    search = order(160.0)
    first = knowledge.begin_with_knowledge(search, RUNS, EIGHT_SECONDS)
    assert knowledge.begin_with_knowledge(search, RUNS, EIGHT_SECONDS) == first and asked == ["rate"]


def test_where_time_counts_none_is_ended_before_the_defaults_have_shown_a_number(order: Callable[..., Search]) -> None:
    """A small batch prints late, and better; a large one would be ended by that number at its own first one."""
    search = order(160.0, Goal(True, target=90.0))
    search.engine.expect(10, search._first_look(EIGHT_SECONDS))
    for late in range(3):
        number, _ = search.engine.ask() or pytest.fail("no room")
        assert not search.engine.ends_early(number, 22, -0.9)
        search.engine.tell(Tried(number, {}, "complete", 0.9, 8.0), late)
    number, _ = search.engine.ask() or pytest.fail("no room")
    assert not search.engine.ends_early(number, 10, -0.5)
    assert search.engine.ends_early(number, 22, -0.5)
