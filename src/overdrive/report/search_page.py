"""A search of hyperparameters as one static HTML file, in the report's style."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.core.search_result import GAINED, RUNNING, SearchResult, Tried
from overdrive.core.settings import in_words, value_in_words
from overdrive.core.units import duration
from overdrive.report import search as words
from overdrive.report import search_costs as costs
from overdrive.report.html import template
from overdrive.report.plots import Plot, plot
from overdrive.report.reading import word
from overdrive.report.search_charts import Axis, Dot, Priced, history, parallel, shares, span, tradeoff

_CLAIMS = {
    "better": "Better than your defaults",
    "cheaper": "Cheaper than your defaults",
    "no better": "No better than your defaults",
    RUNNING: "Not over yet",
}
_LOG_FROM = 10.0  # times between a parameter's ends


def page(result: SearchResult) -> str:
    """The whole page as text, to be written as UTF-8."""
    claim = _CLAIMS.get(result.verdict, "Not established")
    said = words.sentence(result)
    found = result.comparison
    if found and result.verdict == "better" and (more := words.longer(found)):
        claim = f"{claim}, {more}"
    numbers = [("the defaults", _metric(result.defaults)), ("runs", str(len(result.trials)))]
    numbers.append(("spent", duration(result.spent)))
    return template("search.html").render(
        program=word(result.program, 2000),
        title=f"{word(result.program, 2000)}: {claim.lower()}",
        claim=claim,
        rest=said.split(": ", 1)[-1],
        tone="good" if result.verdict in GAINED else "",
        numbers=numbers,
        metric=word(result.metric),
        target=result.target,
        notes=[word(note, 1000) for note in (*words.notes(result), *result.notes)],
        history=_history(result),
        parallel=_parallel(result),
        tradeoff=_tradeoff(result),
        cost=result.against or "the time of a run",
        pairs=_pairs(result) if found else (),
        parameters=[
            (each.name, value_in_words(each.default), f"{each.place}{_moves(each.effect)}", each.domain)
            for each in result.parameters
        ],
        importances=_importances(result),
        runs=(_columns(result), _runs(result)),
        command=result.command if result.verdict in GAINED else "",
        edits=result.edits,
        under_plan=words.under_plan(result),
        run=result.run,
        tree="\n".join(_of_diff(line) for line in result.tree),
    )


def _of_diff(line: str) -> str:
    """Its sign and its indentation stay."""
    said = line[1:].lstrip()
    return word(line[:1]) + " " * min(len(line) - 1 - len(said), 40) + word(said, 300) if said else ""


def _moves(effect: str) -> str:
    return f", moves the {effect}" if effect else ""


def _metric(run: Tried) -> str:
    return "–" if run.metric is None else f"{run.metric:.5g}"


def _came_to(result: SearchResult, run: Tried) -> float | None:
    """The metric; with a target, the seconds until it was reached."""
    return run.reached if result.target is not None else run.metric


def _maximize(result: SearchResult) -> bool:
    return result.maximize and result.target is None


def _history(result: SearchResult) -> Plot | None:
    own = result.defaults
    reached = result.target is None or own.reached is not None
    default = own.metric if result.target is None else own.reached if reached else own.seconds
    points = [
        Dot(run.number, _came_to(result, run), run.state == "complete", dict(run.values) == dict(result.chosen))
        for run in result.trials
    ]
    values = [each.value for each in points if each.value is not None]
    if default is None or not values:
        return None
    worst, best = sorted(span(values, _maximize(result), (default,)))
    beyond = sum(not worst <= each <= best for each in values)
    without = len(points) - len(values)
    lacks = "failed or had no metric" if result.target is None else "did not reach it"
    notes = [f"{without} {lacks}: the marks at the lower edge."] if without else []
    notes += [f"{beyond} far worse: the arrows at the edge."] if beyond else []
    return plot(lambda width: history(points, default, _maximize(result), width, reached), (), (), notes)


def _tradeoff(result: SearchResult) -> Plot | None:
    """Metric against cost, or against the time of a run; with a target that is one and the same."""
    front = costs.front(result)
    if result.target is not None or len(front) < 2:
        return None
    named = {name for name, _ in front}
    points = []
    for name, run in costs.priced(result):
        assert run.metric is not None
        own, chosen = name == "defaults", name != "defaults" and dict(run.values) == dict(result.chosen)
        label = "defaults" if own else "chosen" if chosen else ""
        points.append(Priced(costs.cost_of(result, run), run.metric, name in named, chosen, label))
    rows = [(name, f"{run.metric:.4g}", costs.cost(result, run), _values(run)) for name, run in front]
    head = ("not beaten in both", result.metric, result.against or "time", "values")
    told = lambda value: costs.cost_in_words(result, value)  # noqa: E731
    return plot(lambda width: tradeoff(points, result.maximize, told, width), head, rows)


def _values(run: Tried) -> str:
    return in_words(run.values) if run.values else "as it is"


def _parallel(result: SearchResult) -> Plot | None:
    runs = [
        (run, came) for run in result.trials if run.state == "complete" if (came := _came_to(result, run)) is not None
    ]
    names = [each.name for each in result.parameters]
    if len(runs) < 2:
        return None
    worst, best = span([came for _, came in runs], _maximize(result))
    axes = [*(_axis(name, [run.values[name] for run, _ in runs]) for name in names)]
    axes.append(Axis(word(result.metric) if result.target is None else "seconds", worst, best))
    lines = [
        ([*(run.values[name] for name in names), came], dict(run.values) == dict(result.chosen)) for run, came in runs
    ]
    return plot(lambda width: parallel(axes, lines, width), (), ())


def _axis(name: str, values: Sequence[object]) -> Axis:
    numbers = [float(each) for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) < len(values):
        return Axis(word(name), choices=tuple(sorted({str(each) for each in values})))
    low, high = min(numbers), max(numbers)
    return Axis(word(name), low, high, low > 0 and high > _LOG_FROM * low)


def _importances(result: SearchResult) -> Plot | None:
    rows = [(word(name), share) for name, share in result.importances.items()]
    return plot(lambda width: shares(rows, width), (), ()) if rows else None


def _pairs(result: SearchResult) -> list[tuple[str, ...]]:
    found = result.comparison
    assert found is not None
    rows = zip(found.seeds, found.defaults, found.chosen, strict=True)
    return [(str(seed), _outcome(result, one), _outcome(result, other)) for seed, one, other in rows]


def _outcome(result: SearchResult, run: Tried) -> str:
    if result.target is not None:
        return f"{run.reached:.1f} s" if run.reached is not None else "never reached"
    return _metric(run)


def _runs(result: SearchResult) -> list[tuple[str, ...]]:
    names = [each.name for each in result.parameters]
    own = {each.name: each.default for each in result.parameters}
    return [
        (name, *(value_in_words((run.values or own)[each]) for each in names), *_end(run), *words.costs(result, run))
        for name, run in [("defaults", result.defaults), *((str(run.number), run) for run in result.trials)]
    ]


def _columns(result: SearchResult) -> tuple[str, ...]:
    more = (result.against,) if result.against else ()
    return ("run", *(each.name for each in result.parameters), "metric", "seconds", "", *more)


def _end(run: Tried) -> tuple[str, str, str]:
    said = "; ".join(filter(None, (word(run.why) or run.state, word(words.of_plan(run)))))
    return _metric(run), f"{run.seconds:.1f}", said
