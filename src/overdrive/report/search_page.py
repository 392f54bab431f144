"""A search of hyperparameters as one static HTML file, in the report's style."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.core.search_result import RUNNING, SearchResult, Tried
from overdrive.core.units import duration
from overdrive.report import search as words
from overdrive.report.html import template
from overdrive.report.plots import Plot, plot
from overdrive.report.reading import word
from overdrive.report.search_charts import Axis, Dot, history, parallel

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
        tone="good" if result.verdict in words.GAINED else "",
        numbers=numbers,
        metric=word(result.metric),
        notes=[word(note, 1000) for note in (*words.notes(result), *result.notes)],
        history=_history(result),
        parallel=_parallel(result),
        pairs=_pairs(result) if found else (),
        parameters=[
            (each.name, words.value(each.default), f"{each.place}{_moves(each.effect)}", each.domain)
            for each in result.parameters
        ],
        importances=[(name, f"{share:.0%}") for name, share in result.importances.items()],
        runs=(_columns(result), _runs(result)),
        command=result.command if result.verdict in words.GAINED else "",
        edits=result.edits,
    )


def _moves(effect: str) -> str:
    return f", moves the {effect}" if effect else ""


def _metric(run: Tried) -> str:
    return "–" if run.metric is None else f"{run.metric:.5g}"


def _history(result: SearchResult) -> Plot | None:
    default = result.defaults.metric
    points = [
        Dot(run.number, run.metric, run.state == "complete", dict(run.values) == dict(result.chosen))
        for run in result.trials
        if run.metric is not None
    ]
    if default is None or not points:
        return None
    return plot(lambda width: history(points, default, result.maximize, width), (), ())


def _parallel(result: SearchResult) -> Plot | None:
    runs = [run for run in result.trials if run.metric is not None and run.state == "complete"]
    names = [each.name for each in result.parameters]
    if len(runs) < 2:
        return None
    axes = [*(_axis(name, [run.values[name] for run in runs]) for name in names)]
    axes.append(_axis(result.metric, [run.metric for run in runs], linear=True))
    lines = [
        ([*(run.values[name] for name in names), run.metric], dict(run.values) == dict(result.chosen)) for run in runs
    ]
    return plot(lambda width: parallel(axes, lines, width), (), ())


def _axis(name: str, values: Sequence[object], linear: bool = False) -> Axis:
    numbers = [float(each) for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) < len(values):
        return Axis(word(name), choices=tuple(sorted({str(each) for each in values})))
    low, high = min(numbers), max(numbers)
    return Axis(word(name), low, high, not linear and low > 0 and high > _LOG_FROM * low)


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
        (name, *(words.value((run.values or own)[each]) for each in names), *_end(run), *words.costs(result, run))
        for name, run in [("defaults", result.defaults), *((str(run.number), run) for run in result.trials)]
    ]


def _columns(result: SearchResult) -> tuple[str, ...]:
    more = (result.against,) if result.against else ()
    return ("run", *(each.name for each in result.parameters), "metric", "seconds", "", *more)


def _end(run: Tried) -> tuple[str, str, str]:
    return _metric(run), f"{run.seconds:.1f}", word(run.why) or run.state
