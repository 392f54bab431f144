"""What is said of steps under layouts, in the terminal."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from overdrive.cli.requirements import judged
from overdrive.core.json_data import from_json, to_json
from overdrive.core.requirements_result import RankLayout, Requirements
from overdrive.insight.requirements.layouts import layouts
from overdrive.report.requirements import FORETOLD, requirements
from tests.conftest import ROOT
from tests.insight.requirements.test_step_time import needs, product
from tests.schemas import held

LINK = "4 machines as this one, over 10Gbit,50us"


def result(*steps: tuple[float, float] | str, network: str = LINK, limit: int | None = None) -> Requirements:
    """Of 4 ranks: for data, zero1, shard, ... seconds and the share that is waited, or why nothing is foretold."""
    step = needs(product(10**9, 1, seconds=1.0))
    found = layouts(step, 4, limit)
    told = [found[0]]
    for each, known in zip(found[1:], steps, strict=False):
        if isinstance(known, str):
            told.append(replace(each, why=known))
        else:
            told.append(replace(each, seconds=known[0], communication=known[1], told=("net: divided",)))
    return replace(judged(step, None, "train.py"), layouts=tuple(told), network=network)


def said(found: Requirements, capsys: pytest.CaptureFixture[str]) -> str:
    requirements(found, Console(width=100))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    return " ".join(text.split())


def test_each_layout_has_its_step_and_the_fastest_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = result((0.4, 0.25), (0.5, 0.1), "it is not tried", "it is not tried", "no steps")
    text = said(found, capsys)
    assert "one process 1 s 1.00x 0% data=4 400 ms 2.50x 25% zero1=4 500 ms 2.00x 10%" in text
    assert "Of these, data=4 is the fastest." in text
    assert "No step is foretold of shard=4, tensor=4: it is not tried." in text
    assert "No step is foretold of pipeline=4: no steps." in text
    assert f"is reckoned ({LINK}). Of {FORETOLD[0]} layouts measured on 2 ranks of a CPU" in text
    assert "data=4: Net: divided." in text


def test_what_does_not_fit_is_not_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(result((0.4, 0.25), (0.5, 0.1), (0.9, 0.3), limit=500), capsys)  # zero1=4 takes 400, data=4 550
    assert "Of what fits, zero1=4 is the fastest." in text
    assert "None of those whose step is foretold fits." in said(result((0.4, 0.2), (0.5, 0.1), limit=100), capsys)


def test_one_process_may_be_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Of these nothing is faster than one process." in said(result((1.4, 0.5)), capsys)


def test_where_no_network_is_known_no_step_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    why = "there are 2 cores here for 4 ranks: say how they are connected (--link 10Gbit,50us)"
    text = said(result(why, why, why, network=""), capsys)
    assert f"No step is foretold of data=4, zero1=4, shard=4: {why}." in text
    assert "fastest" not in text and "off by" not in text


def test_all_of_it_is_in_the_json() -> None:
    found = result((0.4, 0.25), "it is not tried")
    written: Any = json.loads(json.dumps(to_json(found)))
    held("requirements", written)
    assert from_json(Requirements, written) == found
    assert {"seconds", "communication", "why", "told"} <= written["layouts"][1].keys()


def test_the_error_that_is_told_is_the_one_that_was_measured() -> None:
    """benchmarks/planner.py wrote it."""
    written = json.loads((ROOT / "benchmarks" / "results" / "planner.json").read_text())
    errors = [
        abs(statistics.median(row["foretold"]) / statistics.median(row["measured"]) - 1)
        for row in written["rows"].values()
    ]
    assert (len(errors), round(statistics.median(errors), 2), round(max(errors), 2)) == FORETOLD


def test_of_one_process_the_step_is_the_measured_one() -> None:
    step = replace(needs(product(1, 1, seconds=3.0)), usual_seconds=3.5)
    alone = layouts(step, 2)[0]
    assert isinstance(alone, RankLayout) and (alone.seconds, alone.communication) == (3.0, 0.0)
    # Ranks with machines of their own are foretold from all of their steps, which are not as quick as the quickest.
    assert layouts(step, 2, apart=True)[0].seconds == 3.5
