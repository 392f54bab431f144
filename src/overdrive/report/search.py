"""A search of hyperparameters in the terminal: what can be varied, how it goes, and what it came to."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.console import Console

from overdrive.core.batch_curve import BatchCurve
from overdrive.core.search_result import (
    GAINED,
    MEMORY,
    PARAMETERS,
    RUNNING,
    STEP,
    TIME,
    SearchResult,
    SeedComparison,
    Tried,
    are_alike,
)
from overdrive.core.settings import Value, in_words, value_in_words
from overdrive.core.units import clock, count, duration
from overdrive.report.paper import Paper
from overdrive.report.search_costs import cost, cost_in_words, front

_MOST_SHOWN = 10  # configurations, the best first


class Teller:
    """Tells each run as it begins, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        so_far = clock(time.monotonic() - self._began)
        self._console.print(f"[{so_far}] {text}", markup=False, highlight=False, soft_wrap=True)


def parameters(rows: Sequence[tuple[str, Value, str, str, str]], program: str, console: Console) -> None:
    """Name, default, place, what it moves and range of each."""
    paper = Paper(console)
    if not rows:
        paper.say(f"{program} has nothing that could be varied without an edit.")
        return
    body = [
        (name, value_in_words(default), f"{place}, moves the {effect}" if effect else place, domain)
        for name, default, place, effect, domain in rows
    ]
    paper.rows(("parameter", "default", "where it is set", "sensible range"), body)


def batch_curve(found: BatchCurve, console: Console) -> None:
    """A row for each batch size, and what they say."""
    paper = Paper(console)
    paper.say()
    body = [
        (
            f"{each.batch}{' (as it is)' if each.batch == found.default else ''}",
            duration(each.seconds),
            count(each.throughput),
            f"{each.steps:.2f}",
            f"{each.time:.2f}",
            f"{each.rate:.2f}",
        )
        for each in found.sizes
    ]
    paper.rows(("batch size", "a step", "samples/s", "steps", "time to the same loss", "learning rate"), body)
    paper.say("Steps, time and learning rate are multiples of the default's; time is foretold, not run.")
    paper.say()
    paper.say(found.sentence(), "bold")


def search(result: SearchResult, console: Console) -> None:
    """All that is to be known of it; the verdict last."""
    paper = Paper(console)
    paper.say()
    _trials(result, paper)
    if result.importances:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in result.importances.items())
        paper.say(f"How much of the differences between configurations each parameter made (PED-ANOVA): {shares}.")
        paper.say()
    if result.comparison:
        _comparison(result, result.comparison, paper)
    for note in (*notes(result), *result.notes):
        paper.say(note)
    paper.say(sentence(result), "bold green" if result.verdict in GAINED else "bold")
    if result.verdict in GAINED:
        paper.say()
        paper.say("Run it:", "dim")
        paper.command([result.command])
        for edit in result.edits:
            paper.say(f"and {edit}")
        if result.run:
            paper.say()
            paper.say(f"{under_plan(result)}:", "dim")
            paper.command([result.run])
        if result.tree:
            paper.say()
            paper.say("What that changes in the model:", "dim")
            for line in result.tree:
                paper.say(line)


def _trials(result: SearchResult, paper: Paper) -> None:
    ranked = sorted(result.trials, key=lambda run: _rank(result, run))
    varied = [each.name for each in result.parameters]
    own = {each.name: each.default for each in result.parameters}
    body = [
        (
            name,
            *(value_in_words((run.values or own)[each]) for each in varied),
            *_ending(result, run),
            *costs(result, run),
        )
        for name, run in [("defaults", result.defaults), *((str(run.number), run) for run in ranked[:_MOST_SHOWN])]
    ]
    paper.rows(("run", *varied, result.metric, "seconds", "", *([result.against] if result.against else [])), body)
    counts = {state: sum(run.state == state for run in result.trials) for state in ("pruned", "failed", "diverged")}
    words = {"pruned": "ended early", "failed": "failed", "diverged": "without a finite metric"}
    told = ", ".join(f"{number} {words[state]}" for state, number in counts.items() if number)
    paper.say(f"{len(result.trials)} runs beside the defaults{f': {told}' if told else ''}.")
    paper.say()


def costs(result: SearchResult, run: Tried) -> tuple[str, ...]:
    """A column more, where the metric is set against something."""
    if not result.against:
        return ()
    return (cost_in_words(result, run.cost) if run.cost else "-",)


def _ending(result: SearchResult, run: Tried) -> tuple[str, str, str]:
    metric = "-" if run.metric is None else f"{run.metric:.5g}"
    said = "" if run.state == "complete" else run.why or {"pruned": "ended early"}.get(run.state, run.state)
    if result.target is not None and run.state == "complete":
        said = f"reached after {run.reached:.1f} s" if run.reached is not None else "never reached"
    return metric, f"{run.seconds:.1f}", said[:80]


def _rank(result: SearchResult, run: Tried) -> tuple[int, float]:
    order = {"complete": 0, "pruned": 1, "diverged": 2, "failed": 3}[run.state]
    if run.metric is None:
        return order, 0.0
    signed = -run.metric if result.maximize else run.metric
    if result.target is not None and run.state == "complete":
        return (0, run.reached) if run.reached is not None else (1, signed)
    return order, signed


def _comparison(result: SearchResult, found: SeedComparison, paper: Paper) -> None:
    body = []
    for seed, one, other in zip(found.seeds, found.defaults, found.chosen, strict=True):
        body.append((str(seed), *_ending(result, one)[::2], *_ending(result, other)[::2]))
    by = f": {result.judge}" if result.judge else ""
    paper.rows(("fresh seed", f"defaults{by}", "", f"chosen{by}", ""), body)


def _front_in_words(result: SearchResult) -> list[str]:
    found = front(result)
    if result.target is not None or len(found) < 2:
        return []
    each = "; ".join(f"{name} {run.metric:.4g} in {cost(result, run)}" for name, run in found)
    return [f"Not beaten in both {result.metric} and {result.against or 'time'}, each in one run: {each}."]


def _plan_in_words(result: SearchResult) -> list[str]:
    """How far the proof of the plan reaches, and what proves one for the chosen configuration."""
    if not result.plan:
        return []
    runs = [run for run in result.trials if run.state != "failed"]
    far = [run for run in runs if run.outside]
    if not far:
        return [f"All runs are within what {result.plan} was proved for."]
    names = ", ".join(dict.fromkeys(name for run in far for name in run.outside))
    said = [f"{len(far)} of {len(runs)} runs are not within what {result.plan} was proved for, by their {names}."]
    if result.tune and result.verdict in GAINED:
        edited = " (after the edits)" if result.edits else ""
        said.append(f"The chosen one is among them: this proves a plan for it{edited}: {result.tune}")
    return said


def under_plan(result: SearchResult) -> str:
    """What stands before the command that runs the chosen one under its plan."""
    edited = ", after the edits" if result.edits else ""
    return f"As the search ran it, under a plan whose proof covers it{edited}"


def of_plan(run: Tried) -> str:
    """What the plan was to this run; nothing where it was as ever."""
    without = f"without {', '.join(run.without)}" if run.without else ""
    beyond = f"plan unproved for its {', '.join(run.outside)}" if run.outside else ""
    return "; ".join(filter(None, (without, beyond)))


def notes(result: SearchResult) -> list[str]:
    """What should be known beside the verdict."""
    found, said = result.comparison, [*_front_in_words(result), *_plan_in_words(result)]
    if found is None:
        return said
    unit = " s" if result.target is not None else ""
    gain = found.gain
    if math.isfinite(gain.low):
        by = f" of {result.judge}" if result.judge else ""
        selected = "" if by else f": {_selection(found.apparent, found.apparent - gain.estimate)}"
        said.append(
            f"In the search its gain was {found.apparent:.4g}{unit}, on fresh seeds{by} {gain.estimate:.4g}{unit} "
            f"[{gain.low:.4g}, {gain.high:.4g}]{selected or '.'}"
        )
    if result.target is not None:  # runs are over as they reach it
        never = sum(run.reached is None for run in found.defaults)
        if never and math.isfinite(gain.low):
            said.append(
                f"{never} of the {len(found.defaults)} default runs never reached it, and count with the time that "
                "they took: the true gain is no smaller than this one."
            )
        return said
    one, other = (sum(run.seconds for run in arm) / len(arm) for arm in (found.defaults, found.chosen))
    if other > 1.1 * one:
        said.append(f"A run with it takes {other / one:.2f} times as long as with the defaults{_at_equal_time(found)}.")
    samples, more = (sum(run.progress for run in arm) / len(arm) for arm in (found.defaults, found.chosen))
    if samples and not 0.95 < more / samples < 1.05:
        said.append(f"A run with it sees {more / samples:.2g} times as many samples as with the defaults.")
    if are_alike(found.defaults, bool(result.within)) and len(found.defaults) > 1 and math.isfinite(gain.low):
        said.append("The seeds changed nothing about the defaults.")
    return said


def _at_equal_time(found: SeedComparison) -> str:
    if found.equal is None:
        return ""
    if not math.isfinite(found.equal.low):
        return ", and had told no metric yet when these were over"
    gain = found.equal
    return f"; when these were over, its gain was {gain.estimate:.4g} [{gain.low:.4g}, {gain.high:.4g}]"


def longer(found: SeedComparison) -> str:
    """Of a gain that is not one at equal wall clock: how much more time it takes; else nothing."""
    if found.equal is None or found.equal.low > 0:
        return ""
    one, other = (sum(run.seconds for run in arm) for arm in (found.defaults, found.chosen))
    return f"in {other / one:.1f} times their time"


def _less(result: SearchResult) -> str:
    words = {PARAMETERS: "fewer parameters", MEMORY: "less memory", STEP: "shorter steps", TIME: "shorter runs"}
    return words[result.against]


def _selection(apparent: float, lost: float) -> str:
    if lost <= 0 or apparent <= 0:
        return "none of it was lost as luck of the selection."
    return f"{min(1.0, lost / apparent):.0%} of it was luck, which selection favours."


def sentence(result: SearchResult) -> str:
    """The verdict."""
    found, what = result.comparison, in_words(result.chosen)
    if result.verdict == RUNNING:
        best = f"best so far {what}, not compared on fresh seeds" if what else "nothing is better than the defaults yet"
        return f"Not over yet: {best}."
    if found is None and result.against:
        return f"No better than your defaults: none that was as good had {_less(result)} within the search."
    if found is None:
        return "No better than your defaults: no configuration was better even within the search."
    gain, pairs = found.gain, len(found.seeds)
    if result.verdict == "not established":
        runs = (*found.defaults, *found.chosen)
        failed = [run for run in runs if run.metric is None or (run.state != "complete" and result.target is None)]
        whole = all(run.state == "complete" for run in runs)
        if failed:
            why = f"{len(failed)} of its runs failed or have no metric"
        elif result.target is not None and not (whole and all(run.reached for run in found.chosen)):
            why = "the target was not reached in every run"
        else:
            unit = " s" if result.target is not None else ""
            why = (
                f"seeds change nothing about it, so that there is one comparison and not {pairs}; its gain in that is "
                f"{gain.estimate:.4g}{unit}"
            )
        return f"Not established that {what} is better than your defaults: {why}."
    reach = f"[{gain.low:.4g}, {gain.high:.4g}]"
    if result.target is not None:
        way = f"{gain.estimate:.3g} s sooner {reach}"
    else:
        way = f"{result.judge or result.metric} better by {gain.estimate:.4g} {reach}"
    if result.against and found.cost:
        priced = f"{found.cost.estimate:.3g} times the {result.against} [{found.cost.low:.3g}, {found.cost.high:.3g}]"
        way = f"{priced}, {way}"
    if result.verdict == "cheaper":
        return (
            f"{_less(result).capitalize()} than with your defaults on {pairs} fresh seeds: {what} "
            f"({way}: how much of the metric it may cost)."
        )
    if result.verdict == "better":
        more = longer(found)
        return f"Better than your defaults{f', {more},' if more else ''} on {pairs} fresh seeds: {what} ({way})."
    may_be = "" if result.against else ", which may be nothing"
    return f"No better than your defaults: of {what}, {pairs} fresh seeds leave {way}{may_be}."
