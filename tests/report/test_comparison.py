"""Two results side by side: what is told of the same plan on two machines."""

from __future__ import annotations

import io
import math
import random
import re

import pytest
from rich.console import Console

from overdrive.core.interval import Interval
from overdrive.core.tune_result import TuneResult
from overdrive.report.comparison import compared, page, ratio_of, show
from overdrive.report.reading import read
from tests.report.sample import HOSTILE, result
from tests.schemas import held

NAMES = ("here.overdrive.toml", "there.json")


def sample(**changes: object) -> TuneResult:
    return read(TuneResult, result(**changes))


def speedup(low: float, estimate: float, high: float) -> dict[str, float]:
    return {"low": low, "estimate": estimate, "high": high}


def shown(a: TuneResult, b: TuneResult) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    show(compared(a, b), NAMES, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_ratio_is_as_wide_as_both_are_uncertain_and_mirrors() -> None:
    one, other = Interval(1.8, 2.0, 2.4), Interval(1.2, 1.25, 1.3)
    found, mirrored = ratio_of(one, other), ratio_of(other, one)
    assert found.estimate == pytest.approx(1.6)
    assert mirrored.low == pytest.approx(1 / found.high) and mirrored.high == pytest.approx(1 / found.low)
    assert math.log(found.high / found.estimate) == pytest.approx(math.hypot(math.log(1.2), math.log(1.25 / 1.2)))
    assert ratio_of(one, Interval(1.0, 1.0, 1.0)).low == pytest.approx(one.low)  # against what is known exactly


def test_the_interval_of_a_ratio_covers_the_truth() -> None:
    """1,000 pairs of measurements, one four times as noisy: 95 % within four standard errors (0.7 points each)."""
    rng, covered = random.Random(1), 0
    for _ in range(1000):
        drawn = []
        for truth, noise in ((1.5, 0.02), (1.2, 0.08)):
            at = math.log(truth) + rng.gauss(0, noise)
            drawn.append(Interval(*(math.exp(at + 1.96 * noise * side) for side in (-1, 0, 1))))
        found = ratio_of(*drawn)
        covered += found.low <= 1.5 / 1.2 <= found.high
    assert 922 <= covered <= 978


@pytest.mark.parametrize(
    ("other", "claim"),
    [
        (speedup(6.9, 7.2, 7.5), "gains more in B"),
        (speedup(2.0, 2.1, 2.2), "gains less in B"),
        (speedup(4.6, 5.1, 5.6), "gain the same, as far as was measured"),
        (None, "Nothing to compare: B has no speed-up"),
    ],
)
def test_a_difference_is_claimed_only_beyond_both_intervals(other: object, claim: str) -> None:
    assert claim in shown(sample(), sample(speedup=other))


def test_figures_techniques_and_what_differs_are_told() -> None:
    a = sample(versions={"torch": "2.13.0", "python": "3.11"})
    b = sample(
        versions={"torch": "2.14.0", "python": "3.11"},
        techniques=[{"name": "channels_last", "contract": "rounding", "speedup": speedup(1.1, 1.2, 1.3)}],
        attribution=None,
    )
    text = shown(a, b)
    assert "samples per second, before" in text and "time per step, after" in text
    assert re.search(r"channels_last \S.* 1\.20x \[1\.10, 1\.30\]", text)
    assert re.search(r"torch 2\.13\.0 2\.14\.0", text)
    assert "3.11" not in text  # is the same in both
    assert "no interval" in text


def test_the_page_holds_the_same_and_a_chart_of_both() -> None:
    found = compared(sample(), sample(speedup=speedup(6.9, 7.2, 7.5)))
    held("side-by-side", found.as_data(NAMES))
    text = page(found, NAMES)
    assert "gains more in B" in text and "there.json" in text
    assert text.count("<svg") == 2 and "A  the whole plan" in text and "B  the whole plan" in text


@pytest.mark.fault(25)
def test_hostile_results_are_inert() -> None:
    hostile = sample(program=HOSTILE, contract=HOSTILE, versions={HOSTILE: HOSTILE}, notice=HOSTILE)
    assert "<script" not in page(compared(hostile, sample()), (HOSTILE, HOSTILE))
    assert "\x1b" not in shown(hostile, sample())


def test_results_with_nothing_in_them_are_shown_as_that() -> None:
    assert "Nothing to compare: neither has a speed-up" in shown(TuneResult(), TuneResult())
    assert page(compared(TuneResult(), TuneResult()), NAMES)
