"""What ranks read of tensors: rank 0's, and who has something else is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.ranks.lockstep import Lockstep
from overdrive.seams.hub import Seams
from overdrive.seams.torch import fetches


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3.0, 3.0, 3.0], ""),
        ([3.0, 3.0000001, 3.0], ""),  # other hardware
        ([float("nan"), float("nan"), float("nan")], ""),
        ([3.0, 3.0, 2.0], "reads a number in step 1 that rank 2 has otherwise (3, and 2 there)"),
        ([4, 4, 5], "rank 2 has otherwise (4, and 5 there)"),
    ],
)
def test_a_number_that_is_another_one_elsewhere_is_told_once(numbers: list[Any], said: str) -> None:
    told: list[str] = []
    group: Any = SimpleNamespace(rank=0, mine=lambda: True, of_each=lambda number, what: numbers)
    seams = Seams(lambda technique, reason: None)
    Lockstep(lambda: group, told.append).observe(seams)
    for _ in range(2):
        found = seams.scalar_read.run(torch.tensor(numbers[0]), lambda: numbers[0])
        assert found is numbers[0] or found == numbers[0]
        assert type(found) is type(numbers[0])
    assert len(told) == bool(said) and said in "".join(told)


@pytest.mark.parametrize("survives", [False, True])
def test_what_a_data_set_reads_in_a_fetch_is_told_to_nobody_but_by_a_run_that_survives(survives: bool) -> None:
    asked: list[Any] = []

    def of_each(number: Any, what: str) -> list[Any]:
        asked.append(number)
        return [7, number]

    group: Any = SimpleNamespace(rank=1, mine=lambda: True, of_each=of_each)
    seams = Seams(lambda technique, reason: None)
    lockstep = Lockstep(lambda: group, lambda what: None)
    lockstep.observe(seams)
    if survives:
        seams.samples_fetched.subscribe(lambda subject, call: call())
    with fetches.noted():
        found = seams.scalar_read.run(torch.tensor(3), lambda: 3)
    assert (found, asked) == ((7, [3]) if survives else (3, []))
    assert seams.scalar_read.run(torch.tensor(4), lambda: 4) == 7 and asked[-1:] == [4], "outside of a fetch rank 0's"
