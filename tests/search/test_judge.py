"""The metric that a comparison is judged by: asked for where it is not there, named where a program has one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.metric import Metric
from overdrive.search.conduct import _check_judge
from overdrive.search.goal import Goal
from overdrive.search.search import CannotSearch

OUTPUT = "".join(f"epoch {n}: val acc: 0.{n}5\ntest acc: 0.{n}3\n" for n in range(5))


def said(metric: str, judge: str = "", output: str = OUTPUT, target: float | None = None) -> list[str]:
    told: list[str] = []
    order: Any = SimpleNamespace(metric=Metric(metric), judge=judge, goal=Goal(True, target), tell=told.append)
    _check_judge(order, SimpleNamespace(output=output))  # type: ignore[arg-type]
    return told


def test_a_metric_of_other_data_is_named_where_the_search_selects_by_validation() -> None:
    assert said("val acc") == ["--judge-by 'test acc' would compare on data that the selection does not see"]
    assert not said("test acc") and not said("val acc", "test acc") and not said("val acc", target=0.9)
    assert not said("val acc", output="val acc: 0.5\n")


def test_one_that_is_not_printed_is_told_after_the_first_run() -> None:
    with pytest.raises(CannotSearch, match=r"nothing to judge by: .* after 'F1'. It prints numbers after: .*test acc"):
        said("val acc", "F1")
    assert not said("val acc", "F1", output="")  # another process has made that run


def test_a_number_that_goes_the_other_way_is_not_named() -> None:
    """By the direction of a loss, less accuracy would be better."""
    assert said("val acc", output="val acc: 0.5\ntest loss: 0.7\n") == []
    both = "val acc: 0.5\ntest acc: 0.5\ntest loss: 0.7\n"
    assert said("val acc", output=both) == [
        "--judge-by 'test acc' would compare on data that the selection does not see"
    ]
