"""What calls were given, in the terminal and on the page."""

from __future__ import annotations

import re
from typing import Any

from tests.report.sample import HOSTILE, page, result
from tests.report.test_terminal import printed


def answers(*sizes: tuple[str, int], **changes: Any) -> dict[str, Any]:
    return result(inference=True, call_sizes=[{"given": given, "calls": calls} for given, calls in sizes], **changes)


def test_several_sizes_are_a_table_and_a_chart() -> None:
    found = answers(("4 × 32", 900), ("4 × 17", 90), ("other sizes", 10))
    text, html = printed(found), page(found)
    assert "calls are given" in text and re.search(r"4 × 17 +90 +9\.0%", text)
    assert "What calls are given" in html and "90.0%" in html and "4 × 17: 90" in html
    assert "Each call is given" not in text + html


def test_of_many_sizes_the_others_are_one_line() -> None:
    text = printed(answers(*((f"1 × {length}", 5) for length in range(1, 25))))
    assert "1 × 7 " in text and "1 × 8 " not in text and re.search(r"all others +85 +70\.8%", text)


def test_one_size_is_a_sentence() -> None:
    found = answers(("16 × 3 × 224 × 224", 64))
    for said in (printed(found), page(found)):
        assert "Each call is given 16 × 3 × 224 × 224." in said and "What calls are given" not in said


def test_a_program_that_trains_and_an_older_file_say_nothing_of_it() -> None:
    for said in (printed(result()), page(result())):
        assert "calls are given" not in said.lower() and "Each call is given" not in said


def test_what_a_file_says_is_shown_and_not_believed() -> None:
    html = page(answers((HOSTILE, 3), ("4 × 4", 0), ("5", 10**40)))
    assert "<script>alert" not in html and 'onerror="alert' not in html
