"""`make bench`: speeds as ratios from alternating whole runs, with intervals. Writes benchmarks/results/cpu.json.

python benchmarks/run.py [--only PART,...] [--rounds 5] [--programs NAME,...]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from alternate import OVERDRIVE, ROOT, Arm, alternate, ratio

from overdrive.machine.inventory import machine, versions
from overdrive.tuner.whole_runs import whole_run

DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "benchmarks" / "results"
Result = dict[str, Any]
WHOLE_STEPS = 3 * 782  # three epochs of 50,000 samples, 64 at a time


def tune(folder: Path, contract: str, words: tuple[str, ...], budget: str = "5m") -> Result:
    """Tune a program; its plan lies in `folder` as CONTRACT.toml."""
    out = folder / f"{contract}.json"
    command = [
        *OVERDRIVE, "tune", "--contract", contract, "--budget", budget,
        "-o", str(folder / f"{contract}.toml"), "--json", str(out), *words,
    ]  # fmt: skip
    began = time.perf_counter()
    print(f"  tuning under {contract}", flush=True)
    subprocess.run(command, check=True, cwd=folder)
    found: Result = json.loads(out.read_text())
    found["wall_seconds"] = time.perf_counter() - began
    return found


def short(found: Result) -> Result:
    names = ("verdict", "speedup", "noise_floor", "baseline", "tuned", "techniques", "rejected", "wall_seconds")
    return {name: found[name] for name in names}


def train_seconds(output: str, wall: float) -> float:
    return float(json.loads(output.strip().splitlines()[-1])["train_seconds"])


def cifar(
    folder: Path,
    rounds: int,
    contracts: tuple[str, ...] = ("exact", "statistical"),
    others: tuple[str, ...] = ("expert", "lightning", "accelerate"),
    epochs: int = 1,
) -> Result:
    """The example on real CIFAR-10 JPEG files, batch 64: seconds of training, one epoch, all peers."""
    data = ("--data", str(DATA / "cifar10-jpeg-train.zip"))
    peers = ROOT / "benchmarks" / "peers"
    plain = str(peers / "cifar_plain.py")
    # cifar_plain is the example with a stopwatch around its training loop. It unpacks its files the first time.
    subprocess.run([sys.executable, plain, "--epochs", "1", *data], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    tunes = {contract: tune(folder, contract, (plain, *data)) for contract in contracts}
    words = ("--epochs", str(epochs), *data)
    arms = [Arm("plain", (sys.executable, plain, *words), train_seconds)]
    for contract in tunes:
        plan = ("run", "--plan", str(folder / f"{contract}.toml"))
        arms.append(Arm(f"overdrive {contract}", (*OVERDRIVE, *plan, plain, *words), train_seconds))
    for peer in others:
        arms.append(Arm(peer, (sys.executable, str(peers / f"cifar_{peer}.py"), *words), train_seconds))
    seconds = alternate(arms, rounds, folder)
    return {
        "epochs": epochs,
        "tunes": {contract: short(found) for contract, found in tunes.items()},
        "seconds": seconds,
        "samples_per_s": {name: epochs * 50_000 / statistics.median(each) for name, each in seconds.items()},
        "speedup": {arm.name: vars(ratio(seconds, "plain", arm.name)) for arm in arms[1:]},
    }


def cifar_default(folder: Path, rounds: int) -> Result:
    """The same under the default contract, without the peers."""
    return cifar(folder, rounds, contracts=("rounding",), others=())


def cifar_statistical(folder: Path, rounds: int) -> Result:
    """The same under `statistical`, without the peers, for the three epochs that the script makes by itself."""
    return cifar(folder, rounds, contracts=("statistical",), others=(), epochs=3)


def cifar_exact(folder: Path, rounds: int) -> Result:
    """And under `exact`."""
    return cifar(folder, rounds, contracts=("exact",), others=(), epochs=3)


def recorded(record: Path) -> Any:
    def measure(output: str, wall: float) -> float:
        return float(json.loads(record.read_text())["seconds_per_step"])

    return measure


def mnist(folder: Path, rounds: int) -> Result:
    """A CNN of the size of the stock MNIST example on real MNIST, batch 64: seconds a step over one epoch."""
    words = (str(ROOT / "examples" / "mnist_cnn.py"), "--data", str(DATA / "mnist"))
    tunes = {contract: tune(folder, contract, words) for contract in ("rounding", "statistical")}
    record = folder / "record.json"
    run = ("run", "--record", str(record))
    epoch = (*words, "--epochs", "1")
    arms = [Arm("plain", (*OVERDRIVE, *run, "--no-plan", *epoch), recorded(record))]
    for contract in tunes:
        plan = ("--plan", str(folder / f"{contract}.toml"))
        arms.append(Arm(f"overdrive {contract}", (*OVERDRIVE, *run, *plan, *epoch), recorded(record)))
    seconds = alternate(arms, rounds, folder)
    return {
        "tunes": {contract: short(found) for contract, found in tunes.items()},
        "seconds_per_step": seconds,
        "speedup": {arm.name: vars(ratio(seconds, "plain", arm.name)) for arm in arms[1:]},
    }


def whole(folder: Path, rounds: int) -> Result:
    """Does the stated speedup hold for whole runs of three epochs, start-up and evaluation included?"""
    words = (str(ROOT / "examples" / "cifar_cnn.py"), "--data", str(DATA / "cifar10-jpeg-train.zip"))
    found = tune(folder, "statistical", words)
    arms = [
        Arm("python", (sys.executable, *words, "--epochs", "3")),
        Arm("overdrive", (*OVERDRIVE, "run", "--plan", str(folder / "statistical.toml"), *words, "--epochs", "3")),
    ]
    seconds = alternate(arms, rounds, folder)
    measured = ratio(seconds, "python", "overdrive")
    stated = whole_run(found["baseline"], found["tuned"], WHOLE_STEPS)
    return {
        "step": found["speedup"],
        "stated": stated,  # for a run of this many steps, start-up included
        "seconds": seconds,
        "whole_runs": vars(measured),
        "whole_over_stated": measured.estimate / stated,
    }


# Programs with something to gain on a CPU, each with a whole run long enough for its speed to be told: words, words
# that make the run longer, steps of that run.
AGREEING: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "cifar exact": (("cifar_cnn.py", "--data", str(DATA / "cifar10-jpeg-train.zip")), ("--epochs", "2"), 2 * 782),
    "digits exact": (("cifar_cnn.py",), ("--epochs", "10"), 10 * 117),
    "mnist rounding": (("mnist_cnn.py", "--data", str(DATA / "mnist")), ("--epochs", "1"), 938),
    "mnist statistical": (("mnist_cnn.py", "--data", str(DATA / "mnist")), ("--epochs", "1"), 938),
    "digits statistical": (("cifar_cnn.py",), ("--epochs", "10"), 10 * 117),
}


def agreement(folder: Path, rounds: int) -> Result:
    """The stated speedup against whole runs, start to exit, on several programs."""
    results: Result = {}
    for name, (words, longer, steps) in AGREEING.items():
        contract = name.split()[-1]
        script = (str(ROOT / "examples" / words[0]), *words[1:])
        found = tune(folder, contract, (*script, *longer), budget="4m")
        if found["tuned"] is None:
            results[name] = {"date": datetime.date.today().isoformat(), "verdict": found["verdict"]}
            continue
        plan = str(folder / f"{contract}.toml")
        arms = [
            Arm("python", (sys.executable, *script, *longer)),
            Arm("overdrive", (*OVERDRIVE, "run", "--plan", plan, *script, *longer)),
        ]
        seconds = alternate(arms, rounds, folder)
        measured = ratio(seconds, "python", "overdrive")
        stated = whole_run(found["baseline"], found["tuned"], steps)
        results[name] = {
            "date": datetime.date.today().isoformat(),
            "step": found["speedup"],
            "stated": stated,
            "seconds": seconds,
            "whole_runs": vars(measured),
            "whole_over_stated": measured.estimate / stated,
            "within": measured.low <= stated <= measured.high,
        }
        print(json.dumps({name: results[name]}), flush=True)
    return results


OVERHEAD = """
import sys, time
import torch
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                            torch.nn.Linear(512, 10))
images, labels = torch.randn(6400, 784), torch.randint(10, (6400,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=64, shuffle=True)
optimizer = torch.optim.Adam(model.parameters())
def epoch():
    began = time.perf_counter()
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return time.perf_counter() - began
epoch(); epoch()
for pair in range(60):
    times = {}
    for inside in ((True, False) if pair % 2 else (False, True)):
        if inside:
            with Session(observers=[Recorder()]):
                times[True] = epoch()
        else:
            times[False] = epoch()
    print(times[True], times[False])
"""


def overhead(folder: Path, rounds: int) -> Result:
    """What `overdrive run --no-plan` costs: a step (sessions on and off in one process), and at the start."""
    from overdrive.evidence.speed import Pair, speedup

    pairs = []
    for process in range(max(3, rounds)):
        done = subprocess.run([sys.executable, "-c", OVERHEAD], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            inside, outside = map(float, line.split())
            pairs.append(Pair(process, 100, inside, outside, True))
    script = folder / "start.py"
    script.write_text("import torch\nfrom torch.utils.data import DataLoader\n")
    arms = [
        Arm("python", (sys.executable, str(script))),
        Arm("overdrive run --no-plan", (*OVERDRIVE, "run", "--no-plan", str(script))),
    ]
    seconds = alternate(arms, 2 * rounds, folder)
    starts = [two - one for one, two in zip(*seconds.values(), strict=True)]
    return {
        "step_cost": vars(speedup(pairs)),  # 1.005 is half a per cent of a step
        "start_seconds": {"median": statistics.median(starts), "least": min(starts), "most": max(starts)},
    }


# Programs of tests/programs, made long enough to be measured.
LONGER = {
    "cnn_argparse": ("--epochs", "2000"), "gan": ("--steps", "50000"), "lstm_stateful": ("--epochs", "4000"),
    "chargpt_memmap": ("--steps", "50000"), "dict_collate": ("--epochs", "4000"),
    "random_augment": ("--epochs", "4000"), "view_after_conv": ("--epochs", "4000"),
    "tensor_dataset": ("--epochs", "4000"), "workers_fork": ("--epochs", "4000"),
}  # fmt: skip


def programs(folder: Path, rounds: int) -> Result:
    """No naive program may come out slower than plain: each tuned with the default contract."""
    import shutil

    place = folder / "programs"
    shutil.copytree(ROOT / "tests" / "programs", place)
    results: Result = {}
    for name, longer in LONGER.items():
        try:
            found = tune(place, "rounding", (f"{name}.py", *longer), budget="75s")
        except subprocess.CalledProcessError as error:
            results[name] = {"failed": error.returncode}
            continue
        results[name] = {
            "verdict": found["verdict"],
            "speedup": found["speedup"],
            "techniques": [each["name"] for each in found["techniques"]],
            "slower": bool(found["techniques"]) and found["speedup"]["low"] < 1,
        }
    return results


PARTS = {
    "cifar": cifar,
    "cifar_default": cifar_default,
    "cifar_statistical": cifar_statistical,
    "cifar_exact": cifar_exact,
    "mnist": mnist,
    "whole": whole,
    "agreement": agreement,
    "overhead": overhead,
    "programs": programs,
}

_ON_DEMAND = ("cifar_statistical", "cifar_exact")  # parts of `cifar`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(name for name in PARTS if name not in _ON_DEMAND))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", default="", help="of `agreement`, with commas between; the others' results stay")
    options = parser.parse_args()
    for name in set(AGREEING) - set(options.programs.split(",")) if options.programs else ():
        del AGREEING[name]
    target = RESULTS / "cpu.json"
    results = json.loads(target.read_text()) if target.exists() else {}
    for name in options.only.split(","):
        if name in ("cifar", "cifar_default", *_ON_DEMAND, "mnist", "whole", "agreement") and not DATA.exists():
            print(f"{name}: left out, {DATA} is not here")
            continue
        print(f"== {name}: {(PARTS[name].__doc__ or '').splitlines()[0]}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            part = PARTS[name](Path(folder), options.rounds)
        results[name] = {
            **(results.get(name, {}) if options.programs else {}),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "versions": versions(),
            "load_average": os.getloadavg()[1],
            **part,
        }
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {target}")


if __name__ == "__main__":
    main()
