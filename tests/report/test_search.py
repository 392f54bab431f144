"""A search told: nothing that was not established is claimed, in the terminal and on the page."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

from rich.console import Console

from overdrive.core.batch_curve import BatchCurve, BatchSize
from overdrive.core.interval import Interval
from overdrive.core.json_data import from_json, to_json
from overdrive.core.search_result import RUNNING, SearchResult, SeedComparison, Tried, Varied
from overdrive.report import search_charts, svg
from overdrive.report.search import batch_curve, search
from overdrive.report.search_costs import front
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
    assert "Not established" in told(broken) and "1 of its runs failed or have no metric" in told(broken)
    crashed = replace(found.comparison, chosen=(run(2, 0.1, 93.0, "failed"), run(2, 0.1, 95.0)))
    assert "1 of its runs failed or have no metric" in told(replace(found, comparison=crashed))
    late = replace(found, target=97.0, comparison=replace(crashed, chosen=(run(2, 0.1, 93.0, "failed"),) * 2))
    assert "the target was not reached in every run" in told(late)


def test_where_seeds_change_nothing_it_is_told() -> None:
    found = result()
    assert found.comparison
    same = replace(found, comparison=replace(found.comparison, defaults=(run(0, 0.01, 90.0),) * 2))
    assert "The seeds changed nothing" in told(same)


def test_what_changes_in_the_model_is_told_line_by_line() -> None:
    out = io.StringIO()
    found = replace(result(), tree=("-    (fc): Linear(4, 8)", "+    (fc): Linear(4, 2)"))
    search(found, Console(file=out, width=100))
    assert "-    (fc): Linear(4, 8)\n+    (fc): Linear(4, 2)\n" in out.getvalue()
    assert "-    (fc): Linear(4, 8)\n+    (fc): Linear(4, 2)</pre>" in unescape(page(found))
    assert "What that changes" not in told(replace(found, verdict="no better")) + page(result())


def test_the_page_is_static_and_its_strings_are_inert() -> None:
    hostile = replace(result(), program=HOSTILE, metric=HOSTILE, notes=(HOSTILE,), command=HOSTILE, edits=(HOSTILE,))
    assert not {tag for tag, _ in Tags(page(hostile)).tags} & {"script", "iframe", "form"}
    assert "<dd>50 s</dd>" in page(result())
    assert page(result()).count("<svg") == 6  # three drawings, each for a desk and for a phone


def test_makes_sense_without_runs_or_comparison() -> None:
    bare = replace(result(verdict="no better"), trials=(), comparison=None, chosen={}, importances={})
    assert "no configuration was better" in told(bare) and "<html" in page(bare)


def test_json_brings_back_the_same() -> None:
    held("search", to_json(result()))
    assert from_json(SearchResult, to_json(result())) == result()
    assert SearchResult.loads(json.loads(result().dumps())) == result()
    endless = SearchResult.loads(json.loads(result(-math.inf, "not established").dumps()))
    assert endless.comparison and endless.comparison.gain.low == -math.inf
    once = result(-math.inf, "not established")
    assert endless.comparison.gain.estimate == once.comparison.gain.estimate  # type: ignore[union-attr]
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
    assert "python train.py --lr=0.1" in text and "95 2.0 1,000 3" in text
    assert [name for name, _ in front(against("cheaper"))] == ["run 2"]  # one that was ended early is none
    assert "Cheaper than your defaults" in page(against("cheaper")) and "4,000" in page(against("cheaper"))
    assert "No better than your defaults" in told(against("no better"))
    bare = replace(against("no better"), comparison=None, chosen={})
    assert "none that was as good had fewer parameters within the search" in told(bare)
    held("search", to_json(against("cheaper")))
    assert SearchResult.loads(json.loads(against("cheaper").dumps())) == against("cheaper")


def test_what_is_not_beaten_in_both_is_drawn_with_the_defaults_and_the_chosen_one() -> None:
    found = against("cheaper")
    assert "what it costs" not in page(found)  # one run beats all others: nothing to weigh
    dearer = replace(found.trials[2], metric=97.0)
    text = page(replace(found, trials=(*found.trials[:2], dearer, *found.trials[3:])))
    assert "Accuracy of each run against parameters" in text and "Metric against cost" in text
    assert text.count(">chosen</text>") == text.count(">defaults</text>") - 2 == 2  # the history names defaults, too
    assert "lr 0.5, model gru" in text  # of the table behind it
    assert "what it costs" not in page(replace(found, target=97.0, trials=(dearer, *found.trials)))


def drawn(points: list[search_charts.Dot], maximize: bool = True) -> ElementTree.Element:
    return ElementTree.fromstring(search_charts.history(points, 90.0, maximize, svg.WIDE))


def test_one_run_that_broke_does_not_flatten_all_others() -> None:
    fine = [search_charts.Dot(number, 90.0 + number) for number in range(6)]
    plain, with_broken = drawn(fine), drawn([*fine, search_charts.Dot(6, -5000.0), search_charts.Dot(7, None)])
    heights = [[float(each.get("cy", 0)) for each in picture.iter("circle")] for picture in (plain, with_broken)]
    assert max(heights[1]) - min(heights[1]) > 0.5 * (max(heights[0]) - min(heights[0])) > 0
    assert len(list(with_broken.iter("polygon"))) == 1  # the one that broke, at the edge
    assert [each.get("class") for each in with_broken.iter("line")].count(
        "interval bad"
    ) == 1  # the one without a metric
    worse = drawn([*fine, search_charts.Dot(6, 9000.0)], maximize=False)
    assert len(list(worse.iter("polygon"))) == 1


def test_long_steps_of_a_batch_curve_are_told_in_seconds() -> None:
    shown = io.StringIO()
    sizes = (BatchSize(1, 3.0, 1.0, 1.0, 1.0), BatchSize(2, 5.0, 0.6, 0.9, 1.4))
    batch_curve(BatchCurve("train.py", 1, 4.0, False, sizes), Console(file=shown, width=120))
    assert "3 s" in shown.getvalue() and "0.333" in shown.getvalue()


def test_that_default_runs_never_reached_the_target_is_told() -> None:
    """The gain was told as if they had been there as they ended."""
    found = replace(result(), target=95.0)
    assert found.comparison
    assert "2 of the 2 default runs never reached it, and count with the time that they took" in told(found)
    there = replace(found.comparison, defaults=tuple(replace(each, reached=1.9) for each in found.comparison.defaults))
    assert "never reached it" not in told(replace(found, comparison=there))


def test_with_a_target_the_seconds_until_it_was_reached_are_drawn() -> None:
    sooner = replace(run(2, 0.1, 95.0), reached=1.5)
    found = replace(
        result(), target=95.0, trials=(sooner, replace(run(3, 0.5, 94.0)), replace(run(4, 0.2, 95.0), reached=1.8))
    )
    text = page(found)
    assert "Seconds until Accuracy was 95" in text and "1 did not reach it" in text
    assert ">seconds</text>" in text  # the last axis
    assert "defaults: not reached until here" in text and "the defaults did not reach it in" in text


def test_the_better_end_of_the_last_axis_is_at_the_top() -> None:
    axes = [search_charts.Axis("lr", 0.0, 1.0), search_charts.Axis("loss", 3.0, 1.0)]
    assert axes[1].at(1.0) == 1.0 and axes[1].at(3.0) == axes[1].at(7.0) == 0.0 and axes[1].ends == ("3", "1")
    picture = search_charts.parallel(axes, [((0.5, loss), False) for loss in (3.0, 2.0, 1.5, 1.0)], svg.WIDE)
    assert picture.count('"curve best"') == 1 and picture.count('"curve run"') == 3
