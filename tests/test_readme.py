"""The first page: short, true to what was measured, and its links lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

from tests.conftest import ROOT

CHART = runpy.run_path(str(ROOT / "benchmarks" / "chart.py"), run_name="chart")
SEARCHES = runpy.run_path(str(ROOT / "benchmarks" / "search_table.py"))
README = (ROOT / "README.md").read_text()
MEASURED = (ROOT / "docs" / "measured.md").read_text()
HISTORY = (ROOT / "docs" / "measured-history.md").read_text()


def test_it_is_one_screen() -> None:
    assert len(README.split()) <= 600
    assert README.index("make demo") < README.index("make test") < 600


def test_it_says_what_it_must() -> None:
    assert "no speedup was measured there yet" in README and "No telemetry" in README


def test_the_figures_of_its_first_screen_are_those_of_the_summary() -> None:
    told = re.findall(r"([\d.]+) to ([\d.]+) times", README)
    assert len(told) >= 2 and [each for each in told if f"| {each[0]}× to {each[1]}×" not in MEASURED] == []


def test_its_links_lead_somewhere() -> None:
    places = re.findall(r"\]\(([^)#]+)\)|src(?:set)?=\"([^\"]+)\"", README)
    assert places
    for place in (one or other for one, other in places):
        assert (ROOT / place).exists(), place


def test_the_chart_is_that_of_the_results() -> None:
    """After a measurement was repeated: python benchmarks/chart.py"""
    for name, colours in CHART["COLOURS"].items():
        drawn = (ROOT / "docs" / "images" / f"results-{name}.svg").read_text(encoding="utf-8")
        assert drawn == CHART["chart"](colours)


def test_the_chart_draws_nothing_that_was_not_established() -> None:
    rows = [CHART["row"](bar) for bar in CHART["BARS"]]
    none = [each for each in rows if each.label == "nothing established"]
    assert none and all(each.low == each.high == 1.0 for each in none)
    assert all(each.low > 1 for each in rows if each.kind == "good")


def test_the_chart_is_one_that_a_browser_shows_alone() -> None:
    text = Path(ROOT / "docs" / "images" / "results-light.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg xmlns=") and "<script" not in text


def figure(interval: dict[str, float]) -> str:
    return "{estimate:.2f}× [{low:.2f}, {high:.2f}]".format(**interval)


def test_the_figures_of_training_are_those_of_the_results() -> None:
    """Each row of the two pages that names its contract and its part of cpu.json."""
    results = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())
    row = re.compile(r"^\| `(\w+)` \| (?:\*\*)?([^|*]+?)(?:\*\*)? \|.*\| `(cifar\w*)` \|$", re.MULTILINE)
    newest, all_of_them = row.findall(MEASURED), row.findall(HISTORY)
    assert len(newest) >= 10 and set(newest) <= set(all_of_them)
    for contract, told, part in all_of_them:
        assert told == figure(results[part]["speedup"][f"overdrive {contract}"]), part


def test_the_figures_of_public_scripts_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "public.json").read_text())
    table = MEASURED.split("## Public scripts")[1].split("##")[0]
    told = [found for parts in results.values() for found in (parts.get("rounding"), parts.get("statistical")) if found]
    faster = [found for found in told if found["verdict"] == "FASTER"]
    figures = [figure(each["speedup"]) for each in faster]
    assert len(figures) >= 10 and [each for each in figures if each not in table] == []


def test_the_figures_of_computing_alone_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "compute.json").read_text())
    table = MEASURED.split("## Computing alone")[1].split("\n## ")[0]
    measured = [found["measured"] for each in results.values() for found in each["contracts"].values()]
    for side in ("by_hand_against_plain", "overdrive_against_plain"):
        assert measured and [figure(each[side]) for each in measured if figure(each[side]) not in table] == []


def test_the_tables_of_searches_are_those_of_the_results() -> None:
    """After a measurement was repeated: python benchmarks/search.py --table"""
    made = SEARCHES["table"](json.loads((ROOT / "benchmarks" / "results" / "search.json").read_text()))
    lines = [line for line in made.splitlines() if line]
    assert len(lines) >= 5
    for page in (MEASURED, HISTORY):
        assert [line for line in lines if line not in page] == []
