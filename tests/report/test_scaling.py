"""How a plan scales over ranks, in the terminal and on the page: what was measured, and what was not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from overdrive.core.tune_result import TuneResult
from overdrive.report import scaling
from overdrive.report.reading import read
from tests.report.sample import page, result, table
from tests.report.sample import scaling as rows


def found(**changes: Any) -> TuneResult:
    return read(TuneResult, result(**changes))


def printed(data: dict[str, Any]) -> str:
    out = io.StringIO()
    table(data, Console(file=out, width=200, highlight=False))
    return out.getvalue()


def test_strong_and_weak_scaling_stand_apart() -> None:
    one, two, four = scaling.strong(found())
    assert one == ("1", "2,000", "1.00x", "100%", "-", "-", "500 MB")
    assert two == ("2", "3,400", "1.70x [1.62, 1.78]", "85%", "8.4%", "7.7%", "380 MB")
    assert four[0] == "4" and four[-2:] == ("not measured", "340 MB")  # by doctor
    assert scaling.weak(found()) == [("2", "17 ms", "18.9 ms", "90% [87%, 93%]")]


def test_what_was_not_measured_is_said_to_be_so() -> None:
    told = scaling.notes(found())
    assert any("(pool.json)" in line for line in told)
    assert told[-1] == "Weak scaling of 4 ranks was not measured: a rank by itself is measured on CPUs alone."
    bare = [rows()[0], {"ranks": 2, "samples_per_s": 3400.0}]
    assert scaling.strong(found(scaling=bare))[1] == ("2", "3,400", *["not measured"] * 4)
    assert scaling.weak(found(scaling=bare)) == []


def test_a_column_of_doctors_is_there_where_a_pool_was_given() -> None:
    assert "by doctor" in scaling.strong_head(found())
    without = [{key: each[key] for key in each if key not in ("pool", "by_doctor")} for each in rows()]
    head, (_, two, _) = scaling.strong_head(found(scaling=without)), scaling.strong(found(scaling=without))
    assert "by doctor" not in head and len(head) == len(two)
    assert not any("doctor" in line for line in scaling.notes(found(scaling=without)))


def test_both_reports_have_the_tables() -> None:
    for text in (printed(result()), page(result())):
        assert "Strong scaling" in text and "Weak scaling" in text and "90% [87%, 93%]" in text and "8.4%" in text
        assert "of 4 ranks was not measured" in text


@pytest.mark.parametrize("given", [[], None, [{"ranks": 1}], [{"ranks": 0}, {"ranks": -2}, "", {}], 7])
def test_there_is_none_where_no_ranks_were_tried(given: Any) -> None:
    for text in (printed(result(scaling=given)), page(result(scaling=given))):
        assert "scaling" not in text
