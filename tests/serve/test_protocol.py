"""Numbers as JSON has them, before they are arrays."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest

from overdrive.serve import protocol


def test_a_long_text_among_short_ones_is_refused_before_numpy_makes_all_as_long() -> None:
    told = {"name": "x", "shape": [2001], "datatype": "FP32", "data": ["x" * 10_000, *["y"] * 2000]}
    body = json.dumps({"inputs": [told]}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(protocol.BadRequest, match="its data are not"):
            protocol.asked(body, None, ["y"])
        assert tracemalloc.get_traced_memory()[1] < 20e6, "2,001 texts of 10,000 letters of four bytes each"
    finally:
        tracemalloc.stop()


NESTED: dict[str, tuple[Any, str]] = {
    "rows": ([[1, 2], [3, 4.5]], ""),
    "none": ([[], []], "x has 0 numbers, and its shape [2, 2] takes 4"),
    "uneven rows": ([[1, 2, 3], [4]], "x is no even list of numbers"),
    "a number among rows": ([1, [2, 3, 4]], "x is no even list of numbers"),
    "too many": ([[1, 2, 3], [4, 5, 6]], "x has 6 numbers"),
    "a word": ([[1, 2], [3, "4"]], "its data are not"),
    "nothing": ([[1, 2], [3, None]], "its data are not"),
    "a dict": ({"0": 1}, "its data are not"),
    "much depth": ([[[[[[[[[[1, 2, 3, 4]]]]]]]]]], ""),
}


@pytest.mark.parametrize("what", NESTED)
def test_numbers_may_come_in_rows(what: str) -> None:
    data, wrong = NESTED[what]
    body = json.dumps({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": data}]}).encode()
    if wrong:
        with pytest.raises(protocol.BadRequest, match=re.escape(wrong)):
            protocol.asked(body, None, ["y"])
        return
    assert protocol.asked(body, None, ["y"]).inputs["x"].shape == (2, 2)
