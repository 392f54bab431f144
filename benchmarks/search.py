"""What `overdrive search` gains, beside random search and Optuna wired in by hand; and how far a batch curve is off.

python benchmarks/search.py [--only soonest,curve] [--programs cifar,mnist,...] [--runs 20] [--seeds 5] [--minutes 12]
                            [--samplers 1] [--from FOLDER]
python benchmarks/search.py --table      what came, for the docs

After `public/prepare.py`, in the Python that has what these programs need. `soonest`: each program as its authors have
it, to its end, under three seeds; the middle one of its last metrics is what others are to reach soonest. Each way of
searching has the time of 20 such runs. What it chose is run under fresh seeds, in turn with the defaults; one that
never comes there counts with the time that it ran, if it is the defaults, and as endless if not. By hand means Optuna's
TPE (and, as the third way, its random sampler) over the same ranges, whole runs, the best of them taken; it has all of
the time, while `overdrive search` spends 40 % of its own on comparing. `curve`: times to the default's training loss as
`--batch-curve` foretells them, beside runs with these batch sizes and learning rates. Writes
benchmarks/results/search.json after each part of a row (the defaults' ends, each way of searching, each fresh seed),
with its date and load; the same command goes on with a row that is not whole. `--minutes`: after which no other part
is begun. `--seeds`: fresh ones, fewer than 5 are named in the row. `--samplers 3`: each way searches three times, each
time with another seed of who proposes, and its choices are run beside the defaults each time: which way is best is
chance as much as method. A row with fewer is gone on with.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "public"))

from alternate import ROOT
from prepare import INTO, programs
from search_table import WAYS, again_of, table

from overdrive.core.json_data import finite, from_json, to_json
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.machine.inventory import machine, versions
from overdrive.search.conduct import SearchRequest, conduct, curve_of
from overdrive.search.domain import domain_of
from overdrive.search.engine import Engine
from overdrive.search.goal import Goal
from overdrive.search.listing import ParameterList, listing
from overdrive.search.names import BATCH_SIZE, LR
from overdrive.search.parameters import Parameter
from overdrive.search.runs import Runs
from overdrive.trials.pool import TrialPool

RESULTS = ROOT / "benchmarks" / "results" / "search.json"
SEEDS = (101, 102, 103, 104, 105)  # fresh ones
ENDS = (201, 202, 203)  # seeds of the runs whose end is the target
_SLOWER = 4.0  # times the default's seconds, after which a run is given up
Result = dict[str, Any]
Values = Mapping[str, Value]


@dataclass(frozen=True)
class Job:
    """A program, the folder it is started in, and the metric that it prints on the way."""

    words: tuple[str, ...]
    metric: str
    folder: Path = ROOT


def jobs(base: Path) -> dict[str, Job]:
    known = programs()
    places = {name: base / name / known[name]["folder"] for name in ("mnist", "vae", "nanogpt")}
    gpt = [word for word in known["nanogpt"]["arguments"] if not word.startswith(("--eval", "--max", "--lr_decay"))]
    gpt += ["--eval_interval=25", "--eval_iters=5", "--max_iters=300", "--lr_decay_iters=300"]
    return {
        "cifar": Job(("examples/cifar_cnn.py", "--epochs", "3"), r"Epoch \d+/\d+  loss ([\d.]+)"),
        "mnist": Job(("main.py", "--epochs", "3"), r"Test set: Average loss: ([\d.]+)", places["mnist"]),
        "vae": Job(("main.py", "--epochs", "4"), r"Test set loss: ([\d.]+)", places["vae"]),
        "gpt": Job(("train.py", *gpt), r"val loss ([\d.]+)", places["nanogpt"]),
        "keras": Job(("examples/mnist_keras.py", "--epochs", "5"), r"accuracy: ([\d.]+)"),
        "tabular": Job(("benchmarks/models/tabular.py",), "Accuracy"),
    }


class ByHand:
    """Optuna as a user wires it in: proposals, whole runs, the best of them."""

    def __init__(self, sampler: str, job: Job, budget: float, target: float, seed: int) -> None:
        self._sampler, self._job, self._budget, self._target = sampler, job, budget, target
        self._seed = seed

    def searched(self) -> Result:
        """The best values, empty where the defaults were, and how many runs there were."""
        goal = goal_of(self._job, self._target)
        with TrialPool() as pool, tempfile.TemporaryDirectory() as scratch:
            runs = runs_of(pool, self._job, goal)
            parameters = usual(runs.found)
            engine = _Plain(Path(scratch) / "journal", {each.name: domain_of(each) for each in parameters}, self._seed)
            engine.sample_by(self._sampler, self._seed)
            default = runs.run({}, 0, self._budget)
            patience, spent = _SLOWER * default.seconds, default.seconds
            best, score = {}, goal.score(default, patience)
            made = 0
            while spent + default.seconds <= self._budget:
                asked = engine.ask()
                assert asked
                number, values = asked
                run = runs.run(values, 0, patience + 5.0)
                its = goal.score(run, patience)
                engine.tell(Tried(number, values, run.state, run.metric, run.seconds), its)
                spent, made = spent + run.seconds, made + 1
                print(f"    {self._sampler} {made}: {values}, {run.seconds:.1f} s", flush=True)
                if its is not None and (score is None or its < score):
                    best, score = dict(values), its
            engine.close()
        return {"chosen": best, "runs": made, "spent": spent}


class _Plain(Engine):
    """No run is ended early, and the sampler is the one that is named."""

    def sample_by(self, name: str, seed: int) -> None:
        samplers = self._optuna.samplers
        self._study.sampler = samplers.TPESampler(seed=seed) if name == "tpe" else samplers.RandomSampler(seed=seed)


def goal_of(job: Job, target: float | None = None) -> Goal:
    aim = "best" if target is None else f"{target:g} soonest"
    return Goal.parse(aim, Metric(job.metric), "minimize" if "loss" in job.metric else "maximize")


def runs_of(pool: TrialPool, job: Job, goal: Goal) -> Runs:
    program = Program(job.words[0], job.words[1:])
    return Runs(pool, program, listing(pool, program, models=False), Metric(job.metric), goal)


def usual(found: ParameterList) -> list[Parameter]:
    return [each for each in found.parameters if each.name in (LR, BATCH_SIZE)]


def default_end(job: Job) -> Tried:
    """The program as it is: its last metric and how long it took, of three seeds the middle one."""
    with TrialPool() as pool:
        runs = runs_of(pool, job, goal_of(job))
        found = [runs.run({}, seed, 3600.0) for seed in ENDS]
    assert all(run.metric is not None for run in found), [run.why for run in found]
    return sorted(found, key=lambda run: run.metric or 0.0)[1]


class Row:
    """What is known of one program, written as each part of it is done.

    Raises:
        OutOfTime: by `part`, where there is no time for another one.
    """

    def __init__(self, known: Result, keep: Callable[[], None], until: float) -> None:
        self.known, self._keep, self._until = known, keep, until

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """As it is known, or made now."""
        if name not in self.known:
            if time.monotonic() > self._until:
                raise OutOfTime
            made, load = make(), os.getloadavg()[0]
            self.known[name] = made
            self.known.setdefault("when", {})[name] = f"{time.strftime('%Y-%m-%d %H:%M')}, load {load:.1f}"
            self._keep()
        return self.known[name]


class OutOfTime(Exception):
    """The row is gone on with by the same command."""


def reached(
    job: Job, end: Tried, arms: Mapping[str, Values], row: Row, seeds: int, again: str = ""
) -> dict[str, list[float | None]]:
    """Seconds to the target of each arm under fresh seeds, in turn; None where it was never reached.

    The defaults count with the time that they ran where they did not.

    Args:
        again: what the names of these parts of the row end with.
    """
    found: dict[str, list[float | None]] = {name: [] for name in arms}
    with TrialPool() as pool:
        runs = runs_of(pool, job, goal_of(job, end.metric))
        runs.total, runs.steps = end.progress, end.steps  # each is over as it comes there

        def under(seed: int) -> dict[str, float | None]:
            seconds = {}
            for name in random.Random(seed).sample(list(arms), len(arms)):
                run = runs.run(arms[name], seed, _SLOWER * end.seconds + 5.0)
                seconds[name] = run.reached or (run.seconds if not arms[name] else None)
                print(f"  seed {seed}  {name:10} {run.reached and round(run.reached, 1)} s", flush=True)
            return seconds

        for seed in SEEDS[:seeds]:
            for name, taken in row.part(f"seed {seed}{again}", lambda seed=seed: under(seed)).items():
                found[name].append(taken)
    return found


def soonest(job: Job, length: int, row: Row, seeds: int, samplers: int) -> None:
    """`length`: of each way of searching, in default runs; `samplers`: how often each searches."""
    end = from_json(Tried, row.part("defaults", lambda: to_json(default_end(job))))
    assert end.metric is not None, end.why
    budget, target = length * end.seconds, end.metric
    print(f"  defaults: {target:g} after {end.seconds:.0f} s; {budget:.0f} s for each way", flush=True)
    for sampler in range(1, samplers + 1):
        again = again_of(sampler)
        ways = {"overdrive": row.part(f"overdrive{again}", lambda seed=sampler: ours(job, target, budget, seed))}
        for name in ("tpe", "random"):
            ways[name] = row.part(f"{name}{again}", ByHand(name, job, budget, target, sampler).searched)
        for name, way in ways.items():
            print(f"  {name}{again}: {way}", flush=True)
        others: dict[str, Values] = {name: way["chosen"] for name, way in ways.items() if way["chosen"]}
        seconds = reached(job, end, {"defaults": {}, **others}, row, seeds, again)
        plain = seconds["defaults"]  # which a way that found nothing better has, too
        sooner = row.part(
            f"sooner{again}",
            lambda plain=plain, seconds=seconds: {each: _ratio(plain, seconds.get(each, plain)) for each in WAYS},
        )
        print(f"  times sooner{again}, of the medians over {seeds} seeds: {sooner}", flush=True)


def ours(job: Job, target: float, budget: float, seed: int) -> Result:
    """What `overdrive search` chooses. It knows nothing of a search before."""
    program, metric = Program(job.words[0], job.words[1:]), Metric(job.metric)
    with TrialPool() as pool, tempfile.TemporaryDirectory() as study:
        request = SearchRequest(program, (), metric, goal_of(job, target), budget, study=Path(study), sampler_seed=seed)
        found = conduct(request, pool, lambda text: print(f"    {text}", flush=True))
    gain = finite(to_json(found.comparison.gain)) if found.comparison else None
    told = {"verdict": found.verdict, "gain": gain, "pairs": len(found.comparison.seeds) if found.comparison else 0}
    return {"chosen": dict(found.chosen), "runs": len(found.trials), "spent": found.spent, **told}


def curve(job: Job, row: Row, seeds: int) -> None:
    """Foretold times to the loss that the default ends with, and measured ones, as multiples of the default's."""
    program = Program(job.words[0], job.words[1:])

    def foretold() -> Result:
        with TrialPool() as pool:
            found = curve_of(SearchRequest(program, (), Metric(), Goal(False), math.inf), pool, print)
            names = {each.meaning: each for each in listing(pool, program, models=False).parameters}
        rate, size = names[LR], names[BATCH_SIZE]
        arms: dict[str, Values] = {"default": {}}
        for each in found.sizes:
            if each.batch != found.default and found.default / 4 <= each.batch <= 4 * found.default:
                arms[str(each.batch)] = {size.name: each.batch, rate.name: float(rate.default) * each.rate}
        return {"arms": arms, "foretold": {str(each.batch): each.time for each in found.sizes}, "curve": to_json(found)}

    curve = row.part("curve", foretold)
    loss = Job(job.words, Metric().name, job.folder)
    end = from_json(Tried, row.part("defaults", lambda: to_json(default_end(loss))))
    assert end.metric is not None, end.why
    seconds = reached(loss, end, curve["arms"], row, seeds)
    rows = {}
    for batch in curve["arms"]:
        if batch != "default":
            told, measured = curve["foretold"][batch], _ratio(seconds[batch], seconds["default"])
            rows[batch] = {"foretold": told, "measured": measured, "error": told / measured - 1}
            print(f"  {batch}: {told:.2f} foretold, {measured:.2f} measured", flush=True)
    row.part("rows", lambda: rows)


def _ratio(one: Sequence[float | None], other: Sequence[float | None]) -> float:
    """Of the medians; what never came there counts as endless."""
    middle = [statistics.median(math.inf if each is None else each for each in side) for side in (one, other)]
    return middle[0] / middle[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="soonest,curve")
    parser.add_argument("--programs", default="cifar,mnist,gpt,tabular")
    parser.add_argument("--runs", type=int, default=20, help="default runs that each way of searching has time for")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="fresh ones, 5 at most")
    parser.add_argument("--samplers", type=int, default=1, help="seeds of who proposes, with which each way searches")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no other part is begun")
    parser.add_argument("--from", dest="base", type=Path, default=INTO, help="where prepare.py laid the programs")
    parser.add_argument("--table", action="store_true", help="print what is in the file, and measure nothing")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    found: Result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.table:
        print(table(found))
        return
    here = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]

    def keep() -> None:
        RESULTS.write_text(json.dumps(finite({**found, **here}), indent=1) + "\n")

    for name in options.programs.split(","):
        job = jobs(options.base.resolve())[name]
        os.chdir(job.folder)
        for part in options.only.split(","):
            print(f"== {part}: {name}", flush=True)
            known = found.setdefault(part, {}).setdefault(name, {})
            asked = {"runs": options.runs, "seeds": min(options.seeds, len(SEEDS)), "words": list(job.words)}
            if any(known.get(key, value) != value for key, value in asked.items()):
                known.clear()  # of other runs
            known.update(asked)
            row = Row(known, keep, until)
            with tempfile.TemporaryDirectory() as state:
                os.environ["XDG_STATE_HOME"] = state  # nothing of a search before
                try:
                    if part == "curve":
                        curve(job, row, asked["seeds"])
                    else:
                        soonest(job, options.runs, row, asked["seeds"], options.samplers)
                except OutOfTime:
                    print("  not whole: the same command goes on with it", flush=True)


if __name__ == "__main__":
    main()
