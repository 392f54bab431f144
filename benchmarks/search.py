"""What `overdrive search` gains, beside random search and Optuna wired in by hand; and how far a batch curve is off.

python benchmarks/search.py [--only soonest,curve] [--programs cifar,mnist,...] [--runs 20] [--from FOLDER]

After `public/prepare.py`, in the Python that has what these programs need. `soonest`: each program as its authors have
it, to its end, under three seeds; the middle one of its last metrics is what others are to reach soonest. Each way of
searching has the time of 20 such runs. What it chose is run under fresh seeds, in turn with the defaults; one that
never comes there counts with the time that it ran, if it is the defaults, and as endless if not. By hand means Optuna's
TPE (and, as the third way, its random sampler) over the same ranges, whole runs, the best of them taken; it has all of
the time, while `overdrive search` spends 40 % of its own on comparing. `curve`: times to the default's training loss as
`--batch-curve` foretells them, beside runs with these batch sizes and learning rates. Writes
benchmarks/results/search.json after each row.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "public"))

from alternate import ROOT
from prepare import INTO, programs

from overdrive.core.json_data import to_json
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
SEEDS = (101, 102, 103, 104, 105)
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
        "tabular": Job(("benchmarks/models/tabular.py", "--epochs", "16"), "Accuracy"),
    }


class ByHand:
    """Optuna as a user wires it in: proposals, whole runs, the best of them."""

    def __init__(self, sampler: str, job: Job, budget: float, target: float) -> None:
        self._sampler, self._job, self._budget, self._target = sampler, job, budget, target

    def chosen(self) -> tuple[dict[str, Value], int]:
        """The best values, empty where the defaults were, and how many runs there were."""
        goal = goal_of(self._job, self._target)
        with TrialPool() as pool, tempfile.TemporaryDirectory() as scratch:
            runs = runs_of(pool, self._job, goal)
            parameters = usual(runs.found)
            engine = _Plain(Path(scratch) / "journal", {each.name: domain_of(each) for each in parameters}, 1)
            engine.sample_by(self._sampler)
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
                if its is not None and (score is None or its < score):
                    best, score = dict(values), its
            engine.close()
        return best, made


class _Plain(Engine):
    """No run is ended early, and the sampler is the one that is named."""

    def sample_by(self, name: str) -> None:
        samplers = self._optuna.samplers
        self._study.sampler = samplers.TPESampler(seed=1) if name == "tpe" else samplers.RandomSampler(seed=1)


def goal_of(job: Job, target: float | None = None) -> Goal:
    aim = "best" if target is None else f"{target:g} soonest"
    return Goal.parse(aim, Metric(job.metric), "minimize" if "loss" in job.metric else "maximize")


def runs_of(pool: TrialPool, job: Job, goal: Goal) -> Runs:
    program = Program(job.words[0], job.words[1:])
    return Runs(pool, program, listing(pool, program), Metric(job.metric), goal)


def usual(found: ParameterList) -> list[Parameter]:
    return [each for each in found.parameters if each.name in (LR, BATCH_SIZE)]


def default_end(job: Job) -> Tried:
    """The program as it is: its last metric and how long it took, of three seeds the middle one."""
    with TrialPool() as pool:
        runs = runs_of(pool, job, goal_of(job))
        found = [runs.run({}, seed, 3600.0) for seed in ENDS]
    assert all(run.metric is not None for run in found), [run.why for run in found]
    return sorted(found, key=lambda run: run.metric or 0.0)[1]


def reached(job: Job, end: Tried, arms: Mapping[str, Values]) -> dict[str, list[float | None]]:
    """Seconds to the target of each arm under fresh seeds, in turn; None where it was never reached.

    The defaults count with the time that they ran where they did not.
    """
    chance, found = random.Random(0), {name: [] for name in arms}
    with TrialPool() as pool:
        runs = runs_of(pool, job, goal_of(job, end.metric))
        runs.total = end.progress  # each is over as it comes there
        for seed in SEEDS:
            for name in chance.sample(list(arms), len(arms)):
                run = runs.run(arms[name], seed, _SLOWER * end.seconds + 5.0)
                found[name].append(run.reached or (run.seconds if not arms[name] else None))
                print(f"  seed {seed}  {name:10} {run.reached and round(run.reached, 1)} s", flush=True)
    return found


def soonest(job: Job, length: int) -> Result:
    """`length`: of each way of searching, in default runs."""
    end = default_end(job)
    assert end.metric is not None, end.why
    budget, aim = length * end.seconds, goal_of(job, end.metric)
    print(f"  defaults: {end.metric:g} after {end.seconds:.0f} s; {budget:.0f} s for each way", flush=True)
    request = SearchRequest(Program(job.words[0], job.words[1:]), (), Metric(job.metric), aim, budget)
    with TrialPool() as pool:
        ours = conduct(request, pool, lambda text: print(f"    {text}", flush=True))
    chosen: dict[str, Values] = {"defaults": {}, "overdrive": ours.chosen}
    made = {"overdrive": len(ours.trials)}
    for name in ("tpe", "random"):
        chosen[name], made[name] = ByHand(name, job, budget, end.metric).chosen()
        print(f"  {name}: {chosen[name]} of {made[name]} runs", flush=True)
    seconds = reached(job, end, chosen)
    found: Result = {"target": end.metric, "budget": budget, "chosen": chosen, "runs": made, "seconds": seconds}
    found["sooner"] = {name: _ratio(seconds["defaults"], seconds[name]) for name in chosen}
    print(f"  times sooner, of the medians: {found['sooner']}", flush=True)
    return found | {"verdict": ours.verdict, "gain": to_json(ours.comparison.gain) if ours.comparison else None}


def curve(job: Job) -> Result:
    """Foretold times to the loss that the default ends with, and measured ones, as multiples of the default's."""
    program = Program(job.words[0], job.words[1:])
    with TrialPool() as pool:
        found = curve_of(SearchRequest(program, (), Metric(), Goal(False), math.inf), pool, print)
        names = {each.meaning: each for each in listing(pool, program).parameters}
    rate, size = names[LR], names[BATCH_SIZE]
    arms: dict[str, Values] = {}
    for each in found.sizes:
        if each.batch == found.default:
            arms["default"] = {}
        elif found.default / 4 <= each.batch <= 4 * found.default:
            arms[str(each.batch)] = {size.name: each.batch, rate.name: float(rate.default) * each.rate}
    loss = Job(job.words, Metric().name, job.folder)
    end = default_end(loss)
    assert end.metric is not None, end.why
    seconds = reached(loss, end, arms)
    rows = {str(each.batch): {"foretold": each.time} for each in found.sizes if str(each.batch) in arms}
    for batch, row in rows.items():
        row["measured"] = _ratio(seconds[batch], seconds["default"])
        row["error"] = row["foretold"] / row["measured"] - 1
        print(f"  {batch}: {row['foretold']:.2f} foretold, {row['measured']:.2f} measured", flush=True)
    return {"curve": to_json(found), "target": end.metric, "seconds": seconds, "rows": rows}


def _ratio(one: Sequence[float | None], other: Sequence[float | None]) -> float:
    """Of the medians; what never came there counts as endless."""
    middle = [statistics.median(math.inf if each is None else each for each in side) for side in (one, other)]
    return middle[0] / middle[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="soonest,curve")
    parser.add_argument("--programs", default="cifar,mnist,gpt,tabular")
    parser.add_argument("--runs", type=int, default=20, help="default runs that each way of searching has time for")
    parser.add_argument("--from", dest="base", type=Path, default=INTO, help="where prepare.py laid the programs")
    options = parser.parse_args()
    found: Result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    here = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]
    for name in options.programs.split(","):
        job = jobs(options.base.resolve())[name]
        os.chdir(job.folder)
        for part in options.only.split(","):
            print(f"== {part}: {name}", flush=True)
            with tempfile.TemporaryDirectory() as state:
                os.environ["XDG_STATE_HOME"] = state  # nothing of a search before
                row = curve(job) if part == "curve" else soonest(job, options.runs)
            row |= {"date": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0]}
            found.setdefault(part, {})[name] = row
            RESULTS.write_text(json.dumps({**found, **here}, indent=1) + "\n")


if __name__ == "__main__":
    main()
