"""What a tune shows while it works, on a terminal and elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from overdrive.cli.json_output import console_beside
from overdrive.core.interval import Interval
from overdrive.report import live


@pytest.mark.parametrize("terminal", [True, False])
def test_reading_samples_is_told_now_and_then(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    with live.Live(Console(file=shown, force_terminal=terminal, width=120), 60.0) as told:
        told.stage("sample_cache against plain")
        now = told._began
        for seconds in (0.5, 11, 12, 13, 30):
            monkeypatch.setattr(live.time, "monotonic", lambda now=now + seconds: now)
            told.filling(int(1000 * seconds), 50_000)
            if told._screen:
                told._screen.refresh()
    text = shown.getvalue()
    assert "11,000 of 50,000 samples read" in text and "30,000 of 50,000" in text
    assert ("12,000 of" in text) is terminal


def test_the_estimate_of_a_whole_duel_is_not_told_as_that_of_its_last_pair() -> None:
    pairs = [SimpleNamespace(steps=4, seconds_a=1.5, seconds_b=1.0)]
    duel: Any = SimpleNamespace(pairs=pairs, interval=None, old=SimpleNamespace(unit="step"))
    told = live.Live(Console(file=io.StringIO()), 60.0)
    told.pair(duel)
    assert told._detail == "1 pair of 4 steps, last 1.50x"
    duel.interval = Interval(1.1, 1.2, 1.3)
    told.pair(duel)
    assert told._detail == "1 pair of 4 steps, 1.20x so far"


def test_candidates_are_shown_in_order_and_the_time_counts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    with live.Live(Console(file=shown, force_terminal=True, width=120), 60.0) as told:
        told.stage("screening")
        assert told._screen is not None
        told.candidates("24 pairs of blocks", {"slow": Interval(0.5, 0.6, 0.7), "fast": Interval(1.2, 1.4, 1.6)})
        told._screen.refresh()
        first = shown.getvalue()
        now = told._began
        monkeypatch.setattr(live.time, "monotonic", lambda: now + 40)
        told._screen.refresh()
        later = shown.getvalue()[len(first) :]
    assert first.index("fast") < first.index("slow") and "1.40x [1.20, 1.60]" in first
    assert "0:20 of the budget left" in later and "fast" in later


def test_colour_that_is_asked_for_makes_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a notebook and in CI FORCE_COLOR is set: each picture of the screen stood there, one below the other."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with live.Live(console_beside(None), 60.0) as told:
        told.stage("screening")
        told.outcome("done")
        assert told._screen is None
    console_beside(None).print("good", style="bold green")
    shown = capsys.readouterr().out
    assert shown.startswith("[0:00] screening\n        done\n") and "\x1b[1;32mgood" in shown


def test_without_a_terminal_the_best_candidates_are_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    with live.Live(Console(file=shown, force_terminal=False, width=120), 60.0) as told:
        now = told._began
        for seconds in (1, 11, 12):
            monkeypatch.setattr(live.time, "monotonic", lambda now=now + seconds: now)
            told.candidates(f"{seconds} pairs", {"fast": Interval(1.2, 1.4, 1.6)})
    assert shown.getvalue().split() == ["11", "pairs:", "fast", "1.40x", "[1.20,", "1.60]"]


def test_without_a_terminal_each_line_stands_under_the_stage_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    with live.Live(Console(file=shown, force_terminal=False, width=40), 60.0) as told:
        told.stage("sample_cache (memory_share=0.5) against plain")
        told.outcome("adopted: 1.84x [1.75, 1.93]; the 213 steps of its duel came to the same, bit for bit")
        told.stage("confirmation")
        told.outcome("1.70x [1.39, 2.08]")
    lines = shown.getvalue().splitlines()
    assert [line[:1] for line in lines] == ["[", " ", "[", " "]  # a line each, however long
    assert lines[0] == "[0:00] sample_cache (memory_share=0.5) against plain" and lines[3].strip().startswith("1.70x")


@pytest.mark.parametrize(
    ("interval", "drawn"),
    [
        (Interval(0.5, 1.0, 2.0), "────────────●────────────"),
        (Interval(1.0, 2**0.5, 2.0), "            │─────●──────"),
        (Interval(0.0, 0.1, float("inf")), "●───────────│────────────"),
    ],
)
def test_a_bar_shows_where_an_interval_lies(interval: Interval, drawn: str) -> None:
    assert live.bar(interval) == drawn
