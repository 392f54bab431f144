"""Every layout on two ranks over simulated links: which of them the planner names beforehand, and which is the fastest.

python benchmarks/links.py [--only MODEL,...] [--rates 1,10] [--minutes 60] [--anew]     as root; half an hour
python benchmarks/links.py --table                                                       what came, for the docs

A cell is a model at a rate. First the pool is measured between the namespaces (`namespaces.py`), for each rate. Of each
model then, what `doctor --for --ranks 2 --link pool.json` measures of a rank under each layout, on one core (on the
other one at the same time, since two machines would not share what the cores of this one do), is played over the pool
of each rate. After that two ranks make real steps between the namespaces, under each layout in turn and back; a step is
the median of all that were timed. One process (one on each core) is measured beside them. After each cell
benchmarks/results/links.json is written; cells that are there are not measured again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from namespaces import HOSTS, Failed, delay_says, link, on_both, pool

from overdrive.cli.layout import technique_of
from overdrive.core.program import Program
from overdrive.insight.requirements.ranks import CannotForetell, noted, ranks_of, reckoned
from overdrive.machine.inventory import machine, versions
from overdrive.machine.pool.curve import Measured

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "links.json"
PORTED = str(ROOT / "benchmarks" / "models" / "on_ranks.py")
LAYOUTS = ("data", "zero1", "shard", "tensor", "pipeline")
ALONE = "one process"
MODELS = {
    "mlp": ("mlp", "--batch-size", "256"),
    "narrow": ("mlp", "--width", "256", "--batch-size", "128"),
    "wide": ("mlp", "--width", "2048", "--batch-size", "256"),
    "cnn": ("cnn", "--batch-size", "128"),
    "resnet18": ("resnet18", "--width", "16", "--batch-size", "64"),
    "lstm": ("lstm", "--hidden", "128", "--batch-size", "64"),
    "gpt": ("gpt", "--layers", "4", "--width", "128", "--context", "64", "--batch-size", "32"),
    "wide gpt": ("gpt", "--layers", "2", "--width", "256", "--context", "64", "--batch-size", "16"),
}
NEAR = 1.1  # times the best: what counts as named rightly
_WARM_UP = 8  # steps, as on_ranks.py has it
_FEWEST, _MOST = 12, 400  # steps that are timed in a run
_UNENDING = 10**6


def planned(words: tuple[str, ...], curves: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By layout, what the planner says of each rate: on each core at the same time, of which the mean counts."""
    with concurrent.futures.ProcessPoolExecutor(len(HOSTS)) as both:
        one, other = both.map(_planned, range(len(HOSTS)), [words] * len(HOSTS), [dict(curves)] * len(HOSTS))
    return {name: _mean(one[name], other[name]) for name in LAYOUTS}


def _mean(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    if "why" in one or "why" in other:
        return one if "why" in one else other
    rates = {rate: [statistics.fmean(pair) for pair in zip(one["rates"][rate], other["rates"][rate], strict=True)]
             for rate in one["rates"]}  # fmt: skip
    return {"rates": rates, "said": one["said"]}


def _planned(core: int, words: tuple[str, ...], curves: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    os.sched_setaffinity(0, {core})  # and with it all that is started
    name, *others = words
    program = Program(PORTED, arguments=(name, "plain", str(_UNENDING), *others))
    over = {rate: ranks_of(2, Measured.kept(text, "pool.json"), quick=True) for rate, text in curves.items()}
    found: dict[str, dict[str, Any]] = {}
    for layout in LAYOUTS:
        try:
            stages = 2 if layout == "pipeline" else 1
            notes, said = noted(program, technique_of(f"{layout}=2", 2), next(iter(over.values())), stages)
            steps = {rate: reckoned(notes, said, there) for rate, there in over.items()}
        except CannotForetell as error:
            found[layout] = {"why": str(error)}
        else:
            rates = {rate: [step.seconds, step.communication] for rate, step in steps.items()}
            found[layout] = {"rates": rates, "said": list(said)}
    return found


def measured(words: tuple[str, ...], layout: str, steps: int, folder: Path) -> list[float]:
    """Seconds of each step that was timed, of rank 0; of `ALONE`, of both processes."""
    name, *others = words
    script = [PORTED, name, "plain", str(_WARM_UP + steps), *others]
    if layout != ALONE:
        script = ["-m", "overdrive", "run", "--no-plan", "--layout", f"{layout}=2", *script]
    printed = on_both(script, folder, ranks=layout != ALONE)
    told = [line for text in printed for line in text.splitlines() if line.startswith("result ")]
    if not told:
        raise Failed(f"{layout} told nothing: {(folder / '0' / 'errors').read_text()[-800:]}")
    return [each for line in told for each in json.loads(line.removeprefix("result "))["steps"]]


def cell(words: tuple[str, ...], told: Mapping[str, Any], rate: str, options: argparse.Namespace) -> dict[str, Any]:
    """What came of one model over the link that is there."""
    steps: dict[str, list[float]] = {layout: [] for layout in (ALONE, *LAYOUTS) if "why" not in told.get(layout, {})}
    failed: dict[str, str] = {}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="links-") as folder:
        for number in range(options.runs):
            for layout in [*steps][:: 1 if number % 2 == 0 else -1]:
                if layout in failed:
                    continue
                expected = told[layout]["rates"][rate][0] if layout in told else told["data"]["rates"][rate][0]
                count = counts.setdefault(layout, max(_FEWEST, min(_MOST, int(options.seconds / expected))))
                try:
                    steps[layout] += measured(words, layout, count, Path(folder))
                except Failed as error:
                    failed[layout] = str(error)
    rows: dict[str, dict[str, Any]] = {}
    for layout in LAYOUTS:
        if (why := told[layout].get("why")) or layout in failed:
            rows[layout] = {"why": why or failed[layout]}
            continue
        seconds, waiting = told[layout]["rates"][rate]
        took = statistics.median(steps[layout])
        rows[layout] = {"foretold": seconds, "waiting": waiting, "measured": took, "error": seconds / took - 1}
        rows[layout] |= {"mean": statistics.fmean(steps[layout]), "steps": len(steps[layout])}
        rows[layout] |= {"said": told[layout]["said"]}
    alone = {ALONE: statistics.median(steps[ALONE])} if ALONE not in failed else {}
    return {"layouts": rows, **alone, **judged(rows)}


def judged(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Which layout the planner names, which is the fastest, and whether the one is as good as the other."""
    there = {layout: row for layout, row in rows.items() if "why" not in row}
    if not there:
        return {"named": None, "best": None, "times the best": None, "near": False}
    named = min(there, key=lambda layout: float(there[layout]["foretold"]))
    best = min(there, key=lambda layout: float(there[layout]["measured"]))
    times = there[named]["measured"] / there[best]["measured"]
    return {"named": named, "best": best, "times the best": times, "near": times <= NEAR}


def summary(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rows = [(layout, row, each) for each in cells.values() for layout, row in each["layouts"].items()]
    errors = [abs(row["error"]) for _, row, _ in rows if "error" in row]
    of_named = [abs(row["error"]) for layout, row, each in rows if layout == each["named"]]
    return {
        "cells": len(cells),
        "near": sum(each["near"] for each in cells.values()),
        "fastest": sum(each["named"] == each["best"] for each in cells.values() if each["best"]),
        "steps": len(errors),
        "median": statistics.median(errors) if errors else None,
        "worst": max(errors, default=None),
        "median of those named": statistics.median(of_named) if of_named else None,
    }


def in_words(row: Mapping[str, Any]) -> str:
    return f"{row['foretold'] * 1e3:.3g}, {row['measured'] * 1e3:.3g} ms: {row['error']:+.0%}"


def table(kept: Mapping[str, Any]) -> None:
    """For docs/measured-history.md."""
    print("| model | Gbit/s | named | fastest | " + " | ".join(f"`{each}=2`" for each in LAYOUTS) + f" | {ALONE} |")
    print("|---" * (5 + len(LAYOUTS)) + "|")
    for each in kept["cells"].values():
        times = f", {each['times the best']:.2f} of it" if each["named"] != each["best"] else ""
        parts = [in_words(row) if "error" in row else "–" for row in (each["layouts"][layout] for layout in LAYOUTS)]
        alone = f"{each[ALONE] * 1e3:.3g}" if ALONE in each else "–"
        named = f"{each['named']}{times}" if each["near"] else f"**{each['named']}**{times}"
        print(f"| {each['model']} | {each['gbit']:g} | {named} | {each['best']} | {' | '.join(parts)} | {alone} |")
    found = kept["summary"]
    print(
        f"\nThe layout that is named is within {NEAR - 1:.0%} of the fastest in {found['near']} of {found['cells']} "
        f"cells (the fastest itself in {found['fastest']}). {found['steps']} steps are off by {found['median']:.0%} in "
        f"the median and {found['worst']:.0%} at worst, those of the layouts that are named by "
        f"{found['median of those named']:.0%} in the median."
    )


def curves_of(rates: list[str]) -> tuple[dict[str, str], str]:
    """What the pool is at each rate, and what the kernel says to a delay."""
    found, refused = {}, ""
    for rate in rates:
        with link(float(rate)), tempfile.TemporaryDirectory(prefix="links-") as folder:
            found[rate] = pool(Path(folder)).read_text()
            refused = delay_says()
        fit = json.loads(found[rate])["fits"]["all_reduce"]
        reached = (fit["bytes_per_second"] or 0) * 8e-9
        print(f"{rate} Gbit/s: all-reduce {reached:.2f} Gbit/s, {fit['latency_seconds'] * 1e6:.0f} us", flush=True)
    return found, refused


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS), metavar="MODEL,...")
    parser.add_argument("--rates", default="1,10", help="Gbit/s")
    parser.add_argument("--minutes", type=float, default=60.0, help="no model is begun after so many")
    parser.add_argument("--runs", type=int, default=2, help="of each layout")
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps in a run, about")
    parser.add_argument("--anew", action="store_true", help="forget the cells before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what is in the file, and measure nothing")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    kept = json.loads(options.out.read_text()) if options.out.exists() and not options.anew else {}
    if options.table:
        table(kept)
        return
    here: dict[str, Any] = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]
    cells = kept["cells"] if "cells" in kept and all(kept[name] == here[name] for name in here) else {}
    until = time.monotonic() + 60 * options.minutes
    rates = options.rates.split(",")
    missing = {name: [rate for rate in rates if f"{name} {rate}" not in cells] for name in options.only.split(",")}
    asked = [rate for rate in rates if any(rate in each for each in missing.values())]
    curves, refused = curves_of(asked)
    for name, left in missing.items():
        if not left or time.monotonic() > until:
            continue
        began, load = time.strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
        told = planned(MODELS[name], {rate: curves[rate] for rate in left})
        for rate in left:
            with link(float(rate)):
                found = cell(MODELS[name], told, rate, options)
            of = {"model": name, "gbit": float(rate), "date": began, "load": load, "arguments": " ".join(MODELS[name])}
            cells[f"{name} {rate}"] = {**of, "fit": json.loads(curves[rate])["fits"]["all_reduce"], **found}
            result = {"summary": summary(cells), "netem": refused, "cells": cells, **here}
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            times = found["times the best"] or 0.0
            print(f"{name} {rate} Gbit/s: {found['named']} named, {found['best']} best: {times:.2f}", flush=True)
            for layout, row in found["layouts"].items():
                print(f"  {layout:8} {row.get('why') or in_words(row)}", flush=True)
    if cells:
        print(json.dumps(summary(cells)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
