"""What a model is given, by its sizes: counted whatever the program's own classes answer, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overdrive.core.call_sizes import CallSize, call_sizes, told
from overdrive.seams import call_sizes as counting
from overdrive.seams.call_sizes import CallSizes


class Stubborn:
    @property
    def shape(self) -> Any:
        raise RuntimeError("its shape cannot be asked for")


def counted(*calls: Any) -> dict[str, int]:
    sizes = CallSizes()
    for args, kwargs in calls:
        sizes.given(args, kwargs)
        sizes.counted()
    return sizes.by_size()


def test_calls_are_counted_by_the_sizes_of_all_that_they_are_given() -> None:
    x, mask = np.zeros((4, 8)), np.zeros((4, 8), dtype=bool)
    assert counted(((x,), {}), ((x,), {}), ((x,), {"mask": mask}), ((x[:3],), {"times": 2})) == {
        "4 × 8": 2,
        "4 × 8, 4 × 8": 1,
        "3 × 8": 1,
    }


def test_inputs_in_lists_count_where_there_are_none_beside_them() -> None:
    image = np.zeros((3, 9, 7))
    assert counted((([image, image],), {})) == {"3 × 9 × 7, 3 × 9 × 7": 1}
    assert counted(((image, [image]), {})) == {"3 × 9 × 7": 1}
    assert counted((([image] * 9,), {})) == {", ".join(["3 × 9 × 7"] * 6 + ["…"]): 1}


def test_what_has_no_size_or_does_not_tell_is_others() -> None:
    assert counted((("a sentence",), {}), ((Stubborn(),), {}), ((np.float32(1),), {})) == {
        "other sizes": 2,
        "a number": 1,
    }


def test_a_program_that_sends_another_size_each_time_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MOST", 3)
    found = counted(*(((np.zeros(length),), {}) for length in (1, 2, 3, 4, 5, 1)))
    assert found == {"1": 2, "2": 1, "3": 1, "other sizes": 2}


def test_a_call_that_does_not_count_is_not_counted() -> None:
    sizes = CallSizes()
    sizes.given((np.zeros(2),), {})
    sizes.given((np.zeros(3),), {})
    sizes.counted()
    assert sizes.by_size() == {"3": 1}


def test_the_most_frequent_are_told_first_and_all_calls_are_in_the_sum() -> None:
    counts = {"1 × 5": 2, "4 × 5": 90, "other sizes": 3, "2 × 5": 7, "3 × 5": 1}
    assert call_sizes(counts, 2) == (CallSize("4 × 5", 90), CallSize("2 × 5", 7), CallSize("other sizes", 6))
    del counts["other sizes"]
    assert call_sizes(counts, 3)[-1] == CallSize("1 other size", 1)
    assert told(counts) == "calls were given 4 × 5 (90), 2 × 5 (7), 1 × 5 (2) and 1 other size (1)"
    assert told({"4 × 5": 90}) == told({}) == ""
