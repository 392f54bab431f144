"""A search told: nothing that was not established is claimed, in the terminal and on the page."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

from rich.console import Console

from overdrive.core.interval import Interval
from overdrive.core.json_data import from_json, to_json
from overdrive.core.search_result import RUNNING, SearchResult, SeedComparison, Tried, Varied
from overdrive.report.search import front, search
from overdrive.report.search_page import page
from tests.report.test_html import Tags
from tests.schemas import held

HOSTILE = "<script>alert(1)</script>"


# Number, metric, seconds: faster and worse, better and slower; worse and slower, as good and slower, hardly faster.
FRONT = [(1, 85.0, 1.0), (2, 95.0, 4.0), (3, 80.0, 3.0), (4, 95.0, 6.0), (5, 89.0, 1.9)]


def run(number: int, lr: float, metric: float | None, state: str = "complete") -> Tried:
    why = "too large" if metric is None else ""
    return Tried(number, {"lr": lr, "model": "gru"}, state, metric, 2.0, 640.0, why=why)


def result(low: float = 1.0, verdict: str = "better") -> SearchResult:
    chosen = run(2, 0.1, 95.0)
    return SearchResult(
        program="train.py",
        metric="Accuracy",
        maximize=True,
        target=None,
        budget=60.0,
        spent=50.0,
        parameters=(
            Varied("lr", 0.01, "option --lr", "learning rate of Adam (train.py:3)", "0.001..1:log"),
            Varied("model", "gru", "option --model", "", "gru, lstm"),
        ),
        defaults=run(0, 0.01, 90.0),
        trials=(run(1, 0.001, 80.0, "pruned"), chosen, run(3, 0.5, 94.0), run(4, 1.0, None, "failed")),
        verdict=verdict,
        chosen=chosen.values,
        comparison=SeedComparison(
            (1, 2), (run(0, 0.01, 90.0), run(0, 0.01, 91.0)), (chosen, chosen), Interval(low, 2.0, 4.0), 5.0
        ),
        command="python train.py --lr=0.1",
        edits=("constant lr (train.py:3): 0.1 instead of 0.01",),
        importances={"lr": 0.9, "model": 0.1},
    )


def told(found: SearchResult) -> str:
    out = io.StringIO()
    search(found, Console(file=out, width=100))
    return " ".join(out.getvalue().split())


def test_a_gain_is_told_with_its_interval_and_the_command() -> None:
    text = told(result())
    assert "Better than your defaults on 2 fresh seeds: lr 0.1, model gru (Accuracy better by 2 [1, 4])." in text
    assert "python train.py --lr=0.1" in text and "and constant lr" in text
    assert "In the search its gain was 5, on fresh seeds 2 [1, 4]: 60% of it was luck" in text
    assert "1 ended early, 1 failed" in text and "too large" in text


def test_no_gain_gives_no_command() -> None:
    text = told(result(-1.0, "no better"))
    assert "No better than your defaults" in text and "python train.py" not in text
    assert "python train.py" not in page(result(-1.0, "no better"))


def test_a_run_that_failed_under_a_fresh_seed_establishes_nothing() -> None:
    found = result(-math.inf, "not established")
    assert found.comparison
    chosen = (run(2, 0.1, None, "failed"), run(2, 0.1, 95.0))
    broken = replace(found, comparison=replace(found.comparison, chosen=chosen))
    assert json.loads(broken.dumps())["comparison"]["gain"]["low"] is None
    assert "Not established" in told(broken) and "1 of its runs have no metric" in told(broken)


def test_where_seeds_change_nothing_it_is_told() -> None:
    found = result()
    assert found.comparison
    same = replace(found, comparison=replace(found.comparison, defaults=(run(0, 0.01, 90.0),) * 2))
    assert "The seeds changed nothing" in told(same)


def test_the_page_is_static_and_its_strings_are_inert() -> None:
    hostile = replace(result(), program=HOSTILE, metric=HOSTILE, notes=(HOSTILE,), command=HOSTILE, edits=(HOSTILE,))
    assert not {tag for tag, _ in Tags(page(hostile)).tags} & {"script", "iframe", "form"}
    assert "<dd>50 s</dd>" in page(result())
    assert page(result()).count("<svg") == 4  # two drawings, each for a desk and for a phone


def test_makes_sense_without_runs_or_comparison() -> None:
    bare = replace(result(verdict="no better"), trials=(), comparison=None, chosen={}, importances={})
    assert "no configuration was better" in told(bare) and "<html" in page(bare)


def test_json_brings_back_the_same() -> None:
    held("search", to_json(result()))
    assert from_json(SearchResult, to_json(result())) == result()
    assert SearchResult.loads(json.loads(result().dumps())) == result()
    endless = SearchResult.loads(json.loads(result(-math.inf, "not established").dumps()))
    assert endless.comparison and endless.comparison.gain.low == -math.inf
    assert "Not established" in told(endless)


def test_what_is_better_or_faster_but_not_both_is_named() -> None:
    runs = [replace(run(number, 0.1, metric), seconds=seconds) for number, metric, seconds in FRONT]
    found = replace(result(), trials=(*runs, replace(run(9, 0.1, 99.0, "pruned"), seconds=0.1)))
    assert [name for name, _ in front(found)] == ["run 1", "defaults", "run 2"]
    assert "time, each in one run: run 1 85 in 1 s; defaults 90 in 2 s; run 2 95 in 4 s." in told(found)
    assert "Not beaten in both" in page(found)
    less = replace(found, maximize=False)
    assert [name for name, _ in front(less)] == ["run 1", "run 3"]
    assert "Not beaten" not in told(replace(found, target=97.0))


def test_one_that_is_not_over_claims_nothing() -> None:
    found = replace(result(verdict=RUNNING), comparison=None)
    assert "Not over yet: best so far lr 0.1, model gru, not compared on fresh seeds." in told(found)
    assert "Not over yet" in page(found) and "python train.py" not in page(found) + told(found)
    assert "nothing is better than the defaults yet" in told(replace(found, chosen={}))


def against(verdict: str, low: float = -0.5) -> SearchResult:
    """A metric set against parameters: run 2 is as good with fewer."""
    found = result(low, verdict)
    assert found.comparison
    fewer = replace(found.comparison, cost=Interval(0.25, 0.25, 0.25), gain=Interval(low, 0.1, 0.7))
    priced = [(found.defaults, 4000.0), (found.trials[0], 500.0), (found.trials[1], 1000.0), (found.trials[2], 9000.0)]
    defaults, *trials = (replace(run, cost=each) for run, each in priced)
    return replace(found, defaults=defaults, trials=(*trials, found.trials[3]), comparison=fewer, against="parameters")


def test_what_costs_less_is_told_with_what_it_may_cost_of_the_metric() -> None:
    text = told(against("cheaper"))
    assert "Less parameters than with your defaults" not in text
    assert "Fewer parameters than with your defaults on 2 fresh seeds: lr 0.1, model gru (0.25 times the" in text
    assert "parameters [0.25, 0.25], Accuracy better by 0.1 [-0.5, 0.7]: how much of the metric it may cost)." in text
    assert "python train.py --lr=0.1" in text and "1,000 parameters" in text
    assert [name for name, _ in front(against("cheaper"))] == ["run 2"]  # one that was ended early is none
    assert "Cheaper than your defaults" in page(against("cheaper")) and "4,000 parameters" in page(against("cheaper"))
    assert "No better than your defaults" in told(against("no better"))
    bare = replace(against("no better"), comparison=None, chosen={})
    assert "none that was as good had fewer parameters within the search" in told(bare)
    held("search", to_json(against("cheaper")))
    assert SearchResult.loads(json.loads(against("cheaper").dumps())) == against("cheaper")
