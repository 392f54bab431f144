"""What is done for each gradient that comes in a backward pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from overdrive.techniques.parallel.data_parallel.gradients import Gradients


class Number(int):
    looked_up = 0

    def __hash__(self) -> int:
        Number.looked_up += 1
        return int(self)


@pytest.mark.parametrize("of_bucket", [1, 10, 1000])
def test_the_work_for_a_gradient_does_not_grow_with_how_many_there_are(
    of_bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1000
    group: Any = SimpleNamespace()
    gradients = Gradients(group)
    gradients._under_way = True
    numbers = [Number(each) for each in range(count)]
    gradients._plan = [[*numbers[first : first + of_bucket]] for first in range(0, count, of_bucket)]
    begun: list[Any] = gradients._begun
    monkeypatch.setattr(gradients, "_begin", begun.append)
    monkeypatch.setattr(Number, "looked_up", 0)
    for each in numbers:
        gradients._arrived(each)
    assert begun == gradients._plan and Number.looked_up < 10 * count
