"""What is said of ranks in growing numbers, in the terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from overdrive.cli.requirements import judged
from overdrive.core.json_data import from_json, to_json
from overdrive.core.requirements_result import PARTS_AT_SIZE, AtSize, AtSizes, Requirements
from overdrive.report.requirements import requirements
from overdrive.report.scale import breaks
from tests.insight.requirements.test_step_time import needs, product
from tests.schemas import held


def row(ranks: int, *parts: float, **more: Any) -> AtSize:
    """`parts`: share, beside, slowest, network, failures."""
    return AtSize(ranks, dict(zip(PARTS_AT_SIZE, (*parts, *[0.0] * 5), strict=False)), **more)


GOOD = row(8, 0.125, 0.01)


def test_what_breaks_first_is_the_largest_part_where_the_share_is_less_than_half() -> None:
    rows = [GOOD, row(16, 0.05, 0.01, 0.02, 0.03), row(32, 0.03, 0.2, 0.0, 0.0)]
    assert breaks(1.0, rows) == (
        "What breaks first is the wait for the network: from 16 ranks on, less than half of a step is a rank's share "
        "of the work, and 27% is this. More than 16 ranks are no faster."
    )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((0.06, 0.08), "what each rank computes beside its share"),
        ((0.06, 0.01, 0.08), "the wait for the slowest rank"),
        ((0.06, 0.01, 0.01, 0.01, 0.08), "what snapshots and lost ranks cost"),
    ],
)
def test_each_part_may_break_first(parts: tuple[float, ...], said: str) -> None:
    assert f"is {said}: from 16 ranks on" in breaks(1.0, [GOOD, row(16, *parts)])


def test_runs_without_an_end_break_and_so_do_the_first_ranks() -> None:
    dead = row(16, 0.06, ends=0.4, run=100.0)
    assert breaks(1.0, [GOOD, dead]).startswith("From 16 ranks on most runs do not come to their end")
    said = breaks(1.0, [row(8, 0.1, 0.0, 0.0, 2.0)])
    assert "at 8 ranks already, less than half" in said
    assert said.endswith("No number of these is faster than one process.")
    assert breaks(1.0, [GOOD]).endswith("nothing breaks.")


def result(*rows: AtSize, stated: tuple[str, ...] = ()) -> Requirements:
    sizes = AtSizes("data", "machines as this one, over 10Gbit,50us", 1.0, 31.0, (60, 1.31), stated, rows)
    return replace(judged(needs(product(10**9, 1, seconds=1.0)), None, "train.py"), sizes=sizes)


def said_of(found: Requirements, capsys: pytest.CaptureFixture[str]) -> str:
    requirements(found, Console(width=100))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    return " ".join(text.split())


def test_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    why = row(4, why="its trial came to an end: it failed")
    found = result(GOOD, row(16, 0.06, 0.01, 0.02, 0.03, told=("Net is called whole",)), replace(why, parts={}))
    text = said_of(found, capsys)
    assert "ranks a step speed its share beside slowest network 8 135 ms 7.41x 93% 7% 0% 0%" in text
    assert "16 120 ms 8.33x 50% 8% 17% 25%" in text
    assert "From 16 ranks on: Net is called whole." in text
    assert "From 16 ranks on the batch of 31 samples is too small" in text
    assert "Nothing is foretold of 4 ranks: its trial came to an end: it failed." in text
    assert "as 60 steps did here, of which the longest took 1.31 times the median." in text
    assert "So many ranks were never run" in text and "Stated" not in text and "failures" not in text


def test_failures_have_columns_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    ends = row(8, 0.125, 0.0, 0.0, 0.0, 0.025, run=7200.0, lost=1.5)
    dead = row(16, 0.06, 0.02, run=None, lost=4.0, ends=0.0)
    text = said_of(result(ends, dead, stated=("a rank fails every 5 h",)), capsys)
    assert "failures lost a run 8 150 ms 6.67x 83% 0% 0% 0% 17% 1.5 2 h" in text
    assert "16 - - 75% 25% 0% 0% no end 4 no end" in text
    assert "Stated, not measured: a rank fails every 5 h." in text


def test_all_of_it_is_in_the_json() -> None:
    found = result(GOOD, row(16, 0.06, run=3.0, lost=1.0, ends=0.5))
    written: Any = json.loads(json.dumps(to_json(found)))
    held("requirements", written)
    assert from_json(Requirements, written) == found
