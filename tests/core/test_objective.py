"""What a tune is to save, as people write it."""

from __future__ import annotations

import pytest

from overdrive.core.objective import TIME, Objective, ObjectiveError, size


@pytest.mark.parametrize("text", ["memory", "time", "time-under-memory=64000000", "latency", "p99=20ms"])
def test_a_text_comes_back(text: str) -> None:
    assert str(Objective.parse(text)) == text


def test_what_is_meant() -> None:
    assert Objective.parse("throughput") == TIME
    assert Objective.parse("p99=0.5s") == Objective(latency=True, within=0.5)
    assert Objective.parse("latency").aim == "time", "techniques that save time are tried"


@pytest.mark.parametrize("text", ["", "speed", "p99", "p99=", "p99=0ms", "p99=20", "p99=-1s", "latency=3ms"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ObjectiveError, match="is none of time"):
        Objective.parse(text)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (999_700_000, "1 GB"),
        (999_400_000, "999 MB"),
        (1_500_000_000_000, "1.5 TB"),
        (1_000, "1 kB"),
        (999, "999 bytes"),
    ],
)
def test_sizes_have_three_figures_and_no_exponent(count: int, told: str) -> None:
    assert size(count) == told
