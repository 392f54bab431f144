"""Two ranks by `overdrive run --ranks 2` against `accelerate launch` and Lightning's DDP of hand-ported scripts.

python benchmarks/ranks.py [--only MODEL,...] [--rounds 2]     writes benchmarks/results/ranks.json; 15 minutes
python benchmarks/ranks.py --seam [--rounds 10]                its part "seam"; 25 minutes
python benchmarks/ranks.py --shares [--budget 90s]             its part "shares"; 10 minutes
(python -m pip install accelerate lightning deepspeed)

Six models at the same global batch, two processes of one thread each, the ways in turn; one process with all cores
beside them. The GPT is also divided: by `--layout zero1=2`, `shard=2` and `tensor=2`, by DeepSpeed's ZeRO 1 and 3, and
by hand with PyTorch's own parts (`fully_shard`, `parallelize_module`) as torchtitan has it, started by torchrun. Told
is a step's time in the median of the rounds, and how far the losses that are printed lie from those of one process: the
largest difference in the first steps, and in the mean of all.

`--seam`: what the same model's step costs in one process under `overdrive run --ranks 1`, which divides nothing, beside
`python`: whole runs of both in every round, in random order, and their ratio with its interval. 1.01 is a per cent.

`--shares`: `doctor --pool` measures exchanges of each size with nothing beside them; then `tune --ranks 2 --pool` of
each model says what share of a step its ranks exchange or wait for each other, and what share the same exchanges would
be by doctor's file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from alternate import ratio

from overdrive.core.interval import Interval
from overdrive.machine.inventory import machine, versions

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "ranks.json"
PORTED = str(ROOT / "benchmarks" / "models" / "on_ranks.py")
RANKS = 2
MODELS = {  # arguments, and steps that take some ten seconds on two cores
    "cnn": (("cnn", "--batch-size", "128"), 120),
    "resnet18": (("resnet18", "--width", "16", "--batch-size", "64"), 50),
    "mlp": (("mlp", "--batch-size", "256"), 150),
    "narrow": (("mlp", "--width", "256", "--batch-size", "128"), 600),
    "lstm": (("lstm", "--hidden", "128", "--batch-size", "64"), 80),
    "gpt": (("gpt", "--layers", "4", "--width", "128", "--context", "64", "--batch-size", "32"), 60),
}
WAYS = ("one process", "overdrive", "accelerate", "lightning")
ALONE = ("one process", "one rank")  # what the seam costs is the second by the first
BY_TORCHRUN = ("fsdp2", "tensor", "zero1", "zero3")
PORTS = ("accelerate", "lightning", *BY_TORCHRUN)  # ways of on_ranks.py
DIVIDED = ("overdrive zero1=2", "zero1", "overdrive shard=2", "zero3", "fsdp2", "overdrive tensor=2", "tensor")
_FIRST = 5  # steps of which losses are compared one by one


def command(way: str, name: str, steps: int, words: tuple[str, ...]) -> list[str]:
    ported = [PORTED, name, way if way in PORTS else "plain", str(steps), *words]
    python = [sys.executable]
    if way == "accelerate":
        # With --cpu it starts one process, or several by mpirun alone; the ported script says that it is for CPUs.
        launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(RANKS)]
        launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        return [*python, *launch, *ported]
    if way in BY_TORCHRUN:
        return [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), *ported]
    if way == "one rank":
        return [*python, "-m", "overdrive", "run", "--no-plan", "--ranks", "1", *ported]
    if way.startswith("overdrive"):
        divided = ["--layout", way.split()[1]] if way != "overdrive" else []
        return [*python, "-m", "overdrive", "run", "--no-plan", "--ranks", str(RANKS), *divided, *ported]
    return [*python, *ported]


def ran(way: str, name: str, steps: int, words: tuple[str, ...]) -> dict[str, object]:
    # DeepSpeed builds an operator at its first start, with the ninja that came with it.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PATH": path}
    if way not in ALONE:
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // RANKS))
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        words_of = command(way, name, steps, words)
        done = subprocess.run(words_of, capture_output=True, text=True, env=environment, cwd=folder, timeout=600)
    told = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    if done.returncode or len(told) != 1:
        raise SystemExit(
            f"{' '.join(words_of)} ended with {done.returncode}:\n{done.stdout[-800:]}{done.stderr[-2500:]}"
        )
    return json.loads(told[0].removeprefix("result "))


def off(losses: list[float], plain: list[float]) -> dict[str, float]:
    first = max(abs(one / other - 1) for one, other in zip(losses[:_FIRST], plain[:_FIRST], strict=True))
    return {"first": first, "mean": abs(statistics.fmean(losses) / statistics.fmean(plain) - 1)}


def measured(name: str, rounds: int) -> dict[str, object]:
    (model, *words), steps = MODELS[name]
    ways = (*WAYS, *DIVIDED) if model == "gpt" else WAYS
    runs = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            runs[way].append(ran(way, model, steps, tuple(words)))
    plain = runs["one process"][0]["losses"]
    found = {
        way: {
            "seconds": statistics.median(each["seconds"] for each in runs[way]),
            "all": [each["seconds"] for each in runs[way]],
            "losses off": off(runs[way][0]["losses"], plain),
        }
        for way in ways
    }
    for way, each in found.items():
        lost = each["losses off"]
        print(
            f"{name:12} {way:18} {each['seconds'] * 1e3:7.1f} ms a step, losses off by {lost['first']:.1e} at first, "
            f"{lost['mean']:.1e} in the mean",
            flush=True,
        )
    return {"arguments": [model, *words], "steps": steps, "ways": found}


def seam(name: str, rounds: int) -> dict[str, object]:
    """What a step costs more on one rank, with the interval over rounds."""
    (model, *words), steps = MODELS[name]
    rng, seconds = random.Random(name), {way: [] for way in ALONE}
    for _ in range(rounds):
        for way in rng.sample(ALONE, len(ALONE)):
            seconds[way].append(ran(way, model, steps, tuple(words))["seconds"])
    faster = ratio(seconds, *ALONE)
    cost = Interval(1 / faster.high, 1 / faster.estimate, 1 / faster.low)
    print(f"{name:12} a step on one rank takes {cost.estimate:.4f} [{cost.low:.4f}, {cost.high:.4f}]", flush=True)
    return {"arguments": [model, *words], "steps": steps, "cost": vars(cost), "seconds": seconds}


def shares(name: str, budget: str, pool: Path) -> dict[str, object]:
    """The share of a step between ranks, and that by doctor's measurement of the same exchanges."""
    (model, *words), _ = MODELS[name]
    with tempfile.TemporaryDirectory(prefix="shares-") as folder:
        told = Path(folder) / "tune.json"
        tune = ["tune", "--ranks", str(RANKS), "--pool", str(pool), "--techniques", "data_parallel", "--budget", budget]
        files = ["-o", str(Path(folder) / "plan.toml"), "--json", str(told)]
        _overdrive([*tune, *files, PORTED, model, "plain", "1000000", *words], {"XDG_STATE_HOME": folder})
        rows = [each for each in json.loads(told.read_text())["scaling"] if each["ranks"] == RANKS]
    if not rows:
        raise SystemExit(f"{name}: two ranks were not measured within {budget}")
    found = {key: rows[0][key] for key in ("communication", "by_doctor", "seconds_per_step", "speedup")}
    print(
        f"{name:12} between ranks {found['communication']:.1%} of a step, by doctor {found['by_doctor']:.1%}",
        flush=True,
    )
    return {"arguments": [model, *words], **found}


def _overdrive(words: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "overdrive", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=900,
    )
    if done.returncode:
        raise SystemExit(f"overdrive {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2500:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seam", action="store_true")
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--budget", default="90s", help="of each tune of --shares")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"rows": {}}
    with tempfile.TemporaryDirectory(prefix="pool-") as folder:
        pool = Path(folder) / "pool.json"
        if options.shares:
            _overdrive(["doctor", "--pool", "--ranks", str(RANKS), "--json", str(pool)])
        for name in options.only.split(","):
            if options.shares:
                kind, row = "shares", shares(name, options.budget, pool)
            elif options.seam:
                kind, row = "seam", seam(name, options.rounds or 10)
            else:
                kind, row = "rows", measured(name, options.rounds or 2)
            part = kept.setdefault(kind, {})
            part[name] = {
                "date": time.strftime("%Y-%m-%d %H:%M"),
                "load": os.getloadavg()[0],
                **row,
            }
            here = {"machine": machine(), "versions": versions()}
            del here["machine"]["available_bytes"]
            options.out.write_text(json.dumps({**kept, **here}, indent=1) + "\n")


if __name__ == "__main__":
    main()
