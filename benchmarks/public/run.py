"""Overdrive on public training scripts that nobody here wrote: what a short tune finds of what a long one finds.

python benchmarks/public/run.py [--only NAME,...] [--parts PART,...] [--from ~/.cache/overdrive-public] [--pairs 5]

After `prepare.py`. Parts: `rounding` and `statistical`, tunes of 5 minutes under that contract; `reference` and
`reference_statistical`, the same for 45 minutes; `whole` and `whole_statistical`, whole runs as `python` and under the
plan of the 5 minutes, in turn. Each tune starts without anything kept from before; whole runs have what their tune
kept. Writes benchmarks/results/public.json after each part, beside what is there, and public.md, a table of all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from alternate import OVERDRIVE, ROOT, Arm, alternate, ratio  # noqa: E402
from prepare import INTO, RECORD, Program, programs  # noqa: E402
from turns import ratio_text  # noqa: E402

from overdrive.core.json_data import from_json  # noqa: E402
from overdrive.core.tune_result import SideFigures  # noqa: E402
from overdrive.machine.inventory import machine, versions  # noqa: E402
from overdrive.tuner.whole_runs import whole_run  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
QUIET = 0.3  # cores that others may use
STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)  # codes of a tune that was asked to end
Result = dict[str, Any]


class Place:
    """Where a program lies, and what Overdrive keeps of it for one tune."""

    def __init__(self, name: str, program: Program, base: Path, tune: str) -> None:
        self.folder = base / name / program["folder"]
        self.words = (program["script"], *program["arguments"])
        self.kept = base / ".overdrive" / name / tune
        self.plan, self.told = self.kept / "plan.toml", self.kept / "tune.json"
        self._environment = {
            **program.get("environment", {}),
            "XDG_STATE_HOME": str(self.kept / "state"),
            "XDG_CACHE_HOME": str(self.kept / "cache"),
        }

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def tune(contract: str, minutes: float, place: Place) -> Result:
    """A tune with nothing kept from before.

    Raises:
        SystemExit: it was stopped: what it has found by then is no result of its minutes.
    """
    shutil.rmtree(place.kept, ignore_errors=True)
    place.kept.mkdir(parents=True)
    budget = f"{60 * minutes:.0f}s"
    options = ("--contract", contract, "--budget", budget, "-o", str(place.plan), "--json", str(place.told))
    began = time.perf_counter()
    with place.environment():
        done = subprocess.run(
            [*OVERDRIVE, "tune", *options, *place.words], cwd=place.folder, text=True, stderr=subprocess.PIPE
        )
    seconds = {"budget_seconds": 60 * minutes, "wall_seconds": round(time.perf_counter() - began, 1)}
    if done.returncode in STOPPED:
        sys.exit(f"The tune in {place.folder} was stopped; nothing is written down of it.")
    if done.returncode:
        return {**seconds, "refused": done.stderr.strip()[-500:]}
    return {**seconds, **outcome_of(json.loads(place.told.read_text()))}


def outcome_of(found: Result) -> Result:
    """Of what a tune told, what is kept here."""
    left = {each["name"] for each in found["rejected"] if each["kind"] == "time"}
    tried = {each["name"] for each in found["rejected"] if each["kind"] == "measured" or each["speedup"]}
    kept = {each["name"] for each in found["techniques"]}
    gains = {each["name"]: each["speedup"] for each in (*found["rejected"], *found["techniques"]) if each["speedup"]}
    return {
        "verdict": found["verdict"],
        "speedup": found["speedup"],
        "techniques": {each["name"]: each["settings"] for each in found["techniques"]},
        "measured": sorted(tried | kept),
        "gains": gains,
        "not_measured": sorted(left - tried - kept),
        "baseline": found["baseline"],
        "tuned": found["tuned"],
        "noise_floor": found["noise_floor"],
        "check": found["check"],
        "notes": found["notes"],
        "next_step": found["next_step"],
    }


def whole(pairs: int, steps: int, place: Place) -> Result:
    """Whole runs, start to exit: plain `python` and `overdrive run` with the plan, in turn."""
    if not steps:
        return {"left_out": "its runs have no length of their own"}
    if not place.told.exists() or not json.loads(place.told.read_text())["techniques"]:
        return {"left_out": "there is no plan that does anything"}
    arms = [
        Arm("python", (sys.executable, *place.words)),
        Arm("overdrive", (*OVERDRIVE, "run", "--plan", str(place.plan), *place.words)),
    ]
    with place.environment():
        seconds = alternate(arms, pairs, place.folder)
    return {"seconds": seconds, "speedup": vars(ratio(seconds, "python", "overdrive"))}


# part: the tune whose plan it makes or runs, its contract, its minutes; 0 for whole runs
PARTS = {
    "rounding": ("rounding", "rounding", 5),
    "statistical": ("statistical", "statistical", 5),
    "whole": ("rounding", "rounding", 0),
    "whole_statistical": ("statistical", "statistical", 0),
    "reference": ("reference", "rounding", 45),
    "reference_statistical": ("reference_statistical", "statistical", 45),
}
REFERENCES = {"rounding": ("whole", "reference"), "statistical": ("whole_statistical", "reference_statistical")}


def cores_of_others() -> float:
    """Cores in use now, while nothing of ours runs."""
    return round(psutil.cpu_percent(interval=3) / 100 * (psutil.cpu_count() or 1), 2)


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src")
    return git("rev-parse", "--short", "HEAD") + (" and changes" if changed else "")


def log_gain(part: Result | None) -> float | None:
    """Of the plan that a tune found; 0 where it found none."""
    if part is None or "refused" in part:
        return None
    return float(math.log(part["speedup"]["estimate"])) if part["techniques"] and part["speedup"] else 0.0


def share(found: Result | None, reference: Result | None) -> float | None:
    """Of the reference's log gain, what the short tune found; None where there is none to find."""
    one, other = log_gain(found), log_gain(reference)
    return None if one is None or not other else one / other


def foretold(found: Result, steps: int) -> float | None:
    """The gain of a whole run of so many steps, start-up included, as the tune's report tells it."""
    if not steps or not found["techniques"] or not (found["baseline"] and found["tuned"]):
        return None
    before, after = (from_json(SideFigures, found[side]) for side in ("baseline", "tuned"))
    return whole_run(before, after, steps)


def processor(part: Result) -> str:
    """Its maker and the widest arithmetic that it has, in which these machines differ: "AMD, avx512_bf16"."""
    cpu = part["machine"]["cpu"]
    widest = next((each for each in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if each in cpu["features"]), "")
    return f"{cpu['model'].split()[0].split('(')[0]}, {widest}"


def table(results: Result, known: dict[str, Program]) -> Iterator[str]:
    """Markdown, a row for each program and contract."""
    heads = "program", "contract", "measured", "plan", "stated", "of a whole run", "whole runs", "of the reference"
    yield f"| {' | '.join((*heads, 'quiet', 'day', 'CPU'))} |"
    yield "|---" * (len(heads) + 3) + "|"
    for name, parts in results.items():
        for contract, (runs, reference) in REFERENCES.items():
            if (found := parts.get(contract)) is None:
                continue
            quiet = "yes" if all(parts[each]["quiet"] for each in (contract, runs) if each in parts) else "no"
            ends = f"{quiet} | {found['date'][5:]} | {processor(found)}"
            if "refused" in found:
                yield f"| {name} | {contract} | – | refused: {found['refused'].splitlines()[-1]} | | | | | {ends} |"
                continue
            count = len(found["measured"])
            of = share(found, parts.get(reference))
            whole_gain = foretold(found, known[name]["steps"])
            cells = (
                f"{count} of {count + len(found['not_measured'])}",
                ", ".join(found["techniques"]) or "–",
                ratio_text(found["speedup"]) if found["techniques"] else "–",
                "–" if whole_gain is None else f"{whole_gain:.2f}×",
                ratio_text(parts.get(runs, {}).get("speedup")),
                "–" if of is None else f"{of:.0%}",
                ends,
            )
            yield f"| {name} | {contract} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs, with commas between")
    parser.add_argument("--parts", default="rounding,whole,statistical,whole_statistical", help="with commas between")
    parser.add_argument("--from", dest="base", type=Path, default=INTO, help="where prepare.py laid the programs")
    parser.add_argument("--pairs", type=int, default=5, help="of whole runs")
    parser.add_argument("--minutes", type=float, help="of every tune, to try this out; written down as it was")
    parser.add_argument("--to", type=Path, default=RESULTS / "public.json")
    options = parser.parse_args()
    known = programs()
    results: Result = json.loads(options.to.read_text()) if options.to.exists() else {}
    for name in options.only.split(",") if options.only else known:
        program, record = known[name], options.base / name / RECORD
        lacking = [each for each in program["needs"] if importlib.util.find_spec(each) is None]
        if lacking or not record.exists():
            print(f"{name}: left out, {', '.join(lacking) or 'prepare.py has not laid it'} is missing", flush=True)
            continue
        for part in options.parts.split(","):
            print(f"== {name}: {part}", flush=True)
            others, load = cores_of_others(), os.getloadavg()[1]
            which, contract, minutes = PARTS[part]
            place = Place(name, program, options.base, which)
            if minutes:
                outcome = tune(contract, options.minutes or minutes, place)
            else:
                outcome = whole(options.pairs, program["steps"], place)
            after = cores_of_others()
            parts = results.setdefault(name, {})
            if minutes and part in REFERENCES:
                parts.pop(REFERENCES[part][0], None)  # whole runs of the plan of before
            parts[part] = {
                "date": datetime.date.today().isoformat(),
                "commit": commit(),
                "machine": machine(),
                "versions": versions(),
                "data": json.loads(record.read_text())["data"],
                "cores_of_others": [others, after],
                "load_average": load,
                "quiet": max(others, after) < QUIET,
                **outcome,
            }
            options.to.write_text(json.dumps(results, indent=1) + "\n")
            options.to.with_suffix(".md").write_text("\n".join(table(results, known)) + "\n")
    print("\n".join(table(results, known)))


if __name__ == "__main__":
    main()
