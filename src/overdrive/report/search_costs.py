"""What runs of a search cost, and which of them none beats in both metric and cost."""

from __future__ import annotations

from overdrive.core.search_result import MEMORY, PARAMETERS, SearchResult, Tried
from overdrive.core.units import duration

_FASTER = 0.9  # of another's seconds: less of a difference is within what single runs take


def front(result: SearchResult) -> list[tuple[str, Tried]]:
    """Runs, of which none is beaten in both metric and cost (the Pareto front), the cheapest first; with their names.

    The cost is the time, where the metric is set against nothing.
    """
    whole = priced(result)
    return sorted(
        (each for each in whole if not any(_beats(result, other, each[1]) for _, other in whole)),
        key=lambda each: cost_of(result, each[1]),
    )


def priced(result: SearchResult) -> list[tuple[str, Tried]]:
    """Runs with a metric at their end and a cost, with their names; the defaults first."""
    named = [("defaults", result.defaults), *((f"run {run.number}", run) for run in result.trials)]
    whole = [(name, run) for name, run in named if run.state == "complete" and run.metric is not None]
    return [(name, run) for name, run in whole if run.cost or (run.seconds and not result.against)]


def cost_of(result: SearchResult, run: Tried) -> float:
    """Of what the metric is set against; seconds of the run, where it is set against nothing."""
    return (run.cost or 0.0) if result.against else run.seconds


def _beats(result: SearchResult, one: Tried, other: Tried) -> bool:
    assert one.metric is not None and other.metric is not None
    gain = (one.metric - other.metric) * (1 if result.maximize else -1)
    cheaper = 1.0 if result.against == PARAMETERS else _FASTER
    mine, its = cost_of(result, one), cost_of(result, other)
    if mine < cheaper * its:
        return gain >= 0
    return gain > 0 and mine * cheaper <= its


def cost(result: SearchResult, run: Tried) -> str:
    """What a run costs, with its unit."""
    told = cost_in_words(result, cost_of(result, run))
    return f"{told} parameters" if result.against == PARAMETERS else told


def cost_in_words(result: SearchResult, found: float) -> str:
    if result.against == PARAMETERS:
        return f"{found:,.0f}"
    if result.against == MEMORY:
        return f"{found / 1e6:,.0f} MB"
    return duration(found) if result.against else f"{found:.3g} s"
