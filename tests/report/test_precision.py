"""The precision table: what was measured of each number format, and why not where it was not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from overdrive.core.tune_result import TuneResult
from overdrive.report.precision import precision
from overdrive.report.reading import read
from tests.report.sample import HOSTILE, page, result, table


def printed(found: dict[str, Any]) -> str:
    out = io.StringIO()
    table(found, Console(file=out))
    return " ".join(out.getvalue().split())


def test_every_format_has_its_row_and_numbers_stand_where_they_were_measured() -> None:
    rows = precision(read(TuneResult, result()))
    assert [row.name for row in rows] == ["fp64", "fp32", "tf32", "bf16", "bf16", "fp16", "fp8"]
    own, fast, slow = rows[1], rows[3], rows[4]
    assert (own.speed, own.memory, own.error) == ("as it is", "512 MiB", "1.2e-07")
    assert fast.speed == "1.50x [1.41, 1.58]" and fast.learns == "yes"
    assert slow.speed == "0.81x [0.79, 0.83], added to allocator"
    assert (slow.memory, slow.error, slow.learns) == ("-", "-", "not checked")
    assert "in hardware" in rows[2].detail and not rows[2].measured


def test_both_reports_show_it() -> None:
    text, html = printed(result()), page(result())
    assert "bf16 autocast" in text and "3.4e-03" in text and "384 MiB" in text
    assert "How many bits it needs" in html and "bf16_weights" in html and "needs a GPU with fp8" in html


OWN = {"format": "fp32", "seconds_per_step": 1.0, "technique": ""}


@pytest.mark.parametrize("rows", [[], None, "x", [None], [OWN]])
def test_says_nothing_where_no_format_was_tried(rows: Any) -> None:
    found = result(precision=rows)
    assert precision(read(TuneResult, found)) == []
    assert "How many bits" not in page(found) and "learns the same" not in printed(found)


@pytest.mark.parametrize("value", [HOSTILE, [], {}, float("nan"), -1, 10**400, True])
def test_whatever_stands_in_it_is_inert(value: Any) -> None:
    found = result()
    for key in dict(found["precision"][3]):
        found["precision"].append({**found["precision"][3], key: value})
    assert "<script" not in page(found) and "\x1b" not in printed(found)
