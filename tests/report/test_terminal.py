"""The table in the terminal: plain where there is no terminal, and nothing in it is taken for markup."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from overdrive.report.paper import Paper
from tests.report.sample import devices, hostile, result, table


def printed(found: dict[str, Any], terminal: bool = False, width: int | None = None) -> str:
    out = io.StringIO()
    table(found, Console(file=out, force_terminal=terminal, width=width, highlight=False))
    return out.getvalue()


def test_says_what_was_tried_and_what_came_of_it() -> None:
    found = result()
    text = printed(found)
    for each in (*found["techniques"], *found["rejected"]):
        assert each["name"] in text
    assert "95 % interval" in " ".join(text.split()) and "Noise floor" in text


def test_what_was_measured_stands_before_what_was_not() -> None:
    measured = {"name": "prefetch", "reason": "its gain was not established", "verdict": "SAME"}
    untried = {"name": "tf32", "reason": "its contract is statistical, you asked for rounding"}
    text = printed(result(rejected=[untried, measured], tuned=None))
    assert text.index("prefetch") < text.index("tf32")
    assert "tried" not in text and "not adopted" not in text and "as it is" in text


def test_what_was_not_tried_never_stands_under_measured() -> None:
    measured = {"name": "prefetch", "reason": "no gain", "verdict": "SAME", "kind": "measured"}
    untried = {"name": "tf32", "reason": "not tried", "kind": "time"}
    found = result(rejected=[measured, untried], tuned=None, attribution=None)
    text = printed(found)
    assert "measured, not used" in text and text.index("measured, not used") < text.index("prefetch")
    assert "no time was left for 1 (tf32)" in text and text.count("tf32") == 1
    other = {"name": "prefetch", "settings": {"depth": 4}, "reason": "not tried", "kind": "time"}
    more = printed(result(rejected=[measured, untried, other], tuned=None, attribution=None))
    assert "no time was left for 2 (tf32, prefetch with depth=4)" in " ".join(more.split())
    out = io.StringIO()
    table(found, Console(file=out, highlight=False), everything=True)
    assert "measured, not used" not in out.getvalue() and "not used" in out.getvalue() and "tf32" in out.getvalue()


def test_what_the_screening_measured_is_told_with_that_though_no_time_was_left_for_its_duel() -> None:
    measured = {"low": 0.94, "estimate": 1.04, "high": 1.15}
    screened = {"name": "tf32", "reason": "measured by the screening alone", "kind": "time", "speedup": measured}
    text = printed(result(rejected=[screened], tuned=None, attribution=None))
    assert text.index("measured, not used") < text.index("tf32") and "1.04x" in text and "no time was left" not in text


def test_a_table_that_is_wider_than_the_terminal_breaks_between_words() -> None:
    """A file with its line is to be copied whole."""
    head = ("parameter", "default", "where it is set", "sensible range")
    where = "option --learning-rate, moves the learning rate of SGD (dlrm_s_pytorch.py:1369)"
    out = io.StringIO()
    Paper(Console(file=out, width=80)).rows(head, [("num-indices-per-lookup", "0.01", where, "0.0003..0.3:log")])
    text = out.getvalue()
    assert all(word in text for word in (*where.split(), "num-indices-per-lookup", "sensible range"))
    assert max(map(len, text.splitlines())) <= 80
    head, row = (
        ("GPU", "largest batch", "step as it is", "in 16 bits"),
        ("A100 SXM", "44,666,323", "7.87 ms", "7.87 ms"),
    )
    out = io.StringIO()
    Paper(Console(file=out, width=44)).rows(head, [row])
    assert out.getvalue().count("7.87 ms") == 2
    Paper(Console(file=out, width=20)).rows(head, [row])


def test_without_a_terminal_there_is_no_control_code_and_no_endless_line() -> None:
    text = printed(result())
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.fault(25)
def test_hostile_names_are_inert(terminal: bool) -> None:
    text = printed(hostile(), terminal)
    assert "\x1b]0;" not in text and "\x1b[31m" not in text and "\x00" not in text
    assert "[bold red]markup[/]" in "".join(text.split()).replace("[boldred]", "[bold red]")


@pytest.mark.parametrize("name", result())
def test_makes_sense_with_any_part_missing(name: str) -> None:
    for gone in (None, {}, [], "", 0):
        assert printed(result(**{name: gone}))


@pytest.mark.parametrize("verdict", ["SAME", "SLOWER", "INCONCLUSIVE"])
def test_claims_no_gain_that_was_not_established(verdict: str) -> None:
    assert "times as fast" not in printed(result(verdict=verdict, techniques=[], tuned=None))


def test_cpu_against_gpu_where_both_were_measured() -> None:
    rows = devices()
    text = printed(result(devices=rows))
    assert "the same script on" in text and "GPU" in text and "61,500" in text
    assert "the same script on" not in printed(result(devices=rows[:1]))
    assert "the same script on" not in printed(result())
