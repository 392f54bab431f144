"""Computing by itself, on the CPU: plain, every single setting by hand, and what `overdrive tune` finds.

python benchmarks/compute.py [--only ROW,...] [--contract LEVEL,...] [--minutes 4] [--rounds 3] [--measure-only]

Each row is a script in benchmarks/models/ as people write it, with its data in memory. By hand means the same
model trained by benchmarks/models/by_hand.py with one thing switched on. First every hand-picked setting is
screened (one process each, a few blocks in turn); then plain, the two best settings that the contract allows
and Overdrive's plan are stepped in turn in fresh processes, `--rounds` times. Picking the best of several noisy
figures favours the hand, not Overdrive; the figures shown are from the fresh processes only.

One row at one contract takes `--minutes` for the tune and two minutes or so for the rest (ResNet-18, with seconds a
step, eight). `--measure-only` takes the plan of an earlier call. Writes benchmarks/results/compute.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from alternate import OVERDRIVE
from turns import MODELS, Arm, by_hand, plain, ratio, ratio_text, step_in_turn

from overdrive.core.contract import Contract
from overdrive.evidence.speed import verdict
from overdrive.machine.cpu import granted_cores
from overdrive.machine.inventory import machine, versions
from overdrive.trials.pool import TrialPool

TARGET = Path(__file__).parent / "results" / "compute.json"
Result = dict[str, Any]

# row: model, words. The GPT is smaller than the GPU's: with 12 layers of 384 a step takes 5 s on two cores.
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mlp": ("mlp", ()),
    "lstm": ("lstm", ()),
    "gpt": ("gpt", ("--layers", "4", "--width", "192", "--context", "128", "--batch-size", "16")),
    "cnn-64": ("cnn", ("--batch-size", "64")),
    "cnn-512": ("cnn", ("--batch-size", "512")),
    "cnn-2048": ("cnn", ("--batch-size", "2048")),
    "resnet18": ("resnet18", ("--batch-size", "128")),
}
# Loosest level that a setting needs. "allocator" is not written into the script but stands in the environment,
# three variables of glibc's malloc: the technique of that name sets them and does nothing else.
HAND = {
    "allocator": Contract.EXACT,
    "channels_last": Contract.ROUNDING,
    "compile": Contract.ROUNDING,
    "fused": Contract.ROUNDING,
    "threads=1": Contract.ROUNDING,
    "no_item": Contract.EXACT,
    "bf16": Contract.STATISTICAL,
}
_SCREEN_ROUNDS = 4
_BLOCKS = 10  # in each of the fresh processes
_FRESH_SECONDS = 60.0  # for the blocks of one set of fresh processes: slow models make fewer


def hand_arm(setting: str, model: str, words: tuple[str, ...]) -> Arm:
    name = f"by hand: {setting}"
    if setting == "allocator":
        return Arm(name, plain(model, words, [("allocator", {"library": "glibc"})]))
    return Arm(name, by_hand(model, setting, words))


def screen(pool: TrialPool, model: str, words: tuple[str, ...]) -> Result:
    """Milliseconds a step of each setting, in one process each."""
    settings = [each for each in HAND if each != "channels_last" or model in ("cnn", "resnet18")]
    arms = [Arm("plain", plain(model, words)), *(hand_arm(each, model, words) for each in settings)]
    step_in_turn(pool, arms, _SCREEN_ROUNDS, time.monotonic() + 2 * _FRESH_SECONDS)
    return {
        "ms_per_step": {arm.name: 1e3 * arm.seconds_per_step for arm in arms if arm.seconds_per_step},
        "failed": {arm.name: arm.failure for arm in arms if arm.failure},
    }


def tune(model: str, words: tuple[str, ...], contract: str, minutes: float, folder: Path) -> Result:
    out = folder / f"{contract}.json"
    command = [
        *OVERDRIVE, "tune", "--contract", contract, "--budget", f"{minutes:g}m",
        "-o", str(folder / f"{contract}.toml"), "--json", str(out), str(MODELS / f"{model}.py"), *words,
    ]  # fmt: skip
    began = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder)
    found: Result = json.loads(out.read_text())
    kept = ("verdict", "speedup", "noise_floor", "baseline", "tuned", "techniques", "rejected", "notes")
    return {**{key: found[key] for key in kept}, "wall_seconds": time.perf_counter() - began}


def measure(
    pool: TrialPool, model: str, words: tuple[str, ...], contract: str, tuned: Result, screened: Result, rounds: int
) -> Result:
    """Plain, the two best settings allowed, and the plan, in turn, in `rounds` sets of fresh processes."""
    allowed = {f"by hand: {each}" for each, level in HAND.items() if Contract(contract).allows(level)}
    pace = screened["ms_per_step"]
    best = sorted((name for name in pace if name in allowed), key=pace.__getitem__)[:2]
    chosen = [(each["name"], each["settings"]) for each in tuned["techniques"]]
    base, ours = Arm("plain", plain(model, words)), Arm("overdrive", plain(model, words, chosen))
    hands = [hand_arm(name.removeprefix("by hand: "), model, words) for name in best]
    for turn in range(rounds):
        print(f"  fresh processes {turn + 1}/{rounds}", flush=True)
        step_in_turn(pool, [base, *hands, ours], _BLOCKS, time.monotonic() + _FRESH_SECONDS, seed=turn)
    standing = [arm for arm in hands if arm.seconds_per_step]
    hand = min(standing, key=lambda arm: arm.seconds_per_step or 0, default=None)
    against_plain, against_hand = ratio(base, ours), ratio(hand, ours) if hand else None
    hand_gain = ratio(base, hand) if hand else None
    return {
        "ms_per_step": {arm.name: 1e3 * arm.seconds_per_step for arm in [base, *hands, ours] if arm.seconds_per_step},
        "failed": {arm.name: arm.failure for arm in [base, *hands, ours] if arm.failure},
        "left_out": ours.left_out,
        "best_by_hand": hand.name if hand else None,
        "by_hand_against_plain": vars(hand_gain) if hand_gain else None,
        "overdrive_against_plain": vars(against_plain) if against_plain else None,
        "overdrive_against_best_by_hand": vars(against_hand) if against_hand else None,
        "not_below_plain": against_plain is not None and str(verdict(against_plain)) != "SLOWER",
        # Where the best setting by hand is no gain at all, what counts is not to be below plain.
        "at_least_by_hand": against_hand is not None and str(verdict(against_hand)) != "SLOWER",
        "verdict_against_best_by_hand": str(verdict(against_hand)) if against_hand else None,
    }


def show(results: Result) -> None:
    print("\n| row | contract | plain | best by hand | | Overdrive | against the hand | plan | >= hand | >= plain |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row, part in results.items():
        for contract, each in part["contracts"].items():
            found = each.get("measured")
            if not found or "plain" not in found["ms_per_step"]:
                continue
            yes = {True: "yes", False: "NO"}
            cells = (
                row,
                contract,
                f"{found['ms_per_step']['plain']:.3g} ms",
                (found["best_by_hand"] or "–").removeprefix("by hand: "),
                ratio_text(found["by_hand_against_plain"]),
                ratio_text(found["overdrive_against_plain"]),
                ratio_text(found["overdrive_against_best_by_hand"]),
                ", ".join(technique["name"] for technique in each["tune"]["techniques"]) or "none",
                yes[found["at_least_by_hand"]],
                yes[found["not_below_plain"]],
            )
            print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="rows")
    parser.add_argument("--contract", default="exact,rounding,statistical")
    parser.add_argument("--minutes", type=float, default=4.0, help="budget of each tune")
    parser.add_argument("--rounds", type=int, default=3, help="sets of fresh processes")
    parser.add_argument("--measure-only", action="store_true", help="measure the plan that was found before")
    parser.add_argument("--screen-again", action="store_true", help="forget which settings by hand were best")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.pop("OMP_NUM_THREADS", None)  # threads as a user has them who sets nothing
    results: Result = json.loads(options.output.read_text()) if options.output.exists() else {}
    for row in options.only.split(","):
        model, words = ROWS[row]
        part = results.setdefault(row, {"contracts": {}})
        part.update(
            date=datetime.date.today().isoformat(),
            cores=granted_cores(),
            machine=machine(),
            versions=versions(),
            load_average=os.getloadavg()[1],
        )
        for contract in options.contract.split(","):
            print(f"== {row}, {contract}", flush=True)
            each = part["contracts"].setdefault(contract, {})
            with tempfile.TemporaryDirectory() as folder:
                if not options.measure_only or "tune" not in each:
                    each["tune"] = tune(model, words, contract, options.minutes, Path(folder))
            with TrialPool() as pool:
                if "screened" not in part or options.screen_again:
                    print("  screening the settings by hand", flush=True)
                    part["screened"] = screen(pool, model, words)
                each["measured"] = measure(pool, model, words, contract, each["tune"], part["screened"], options.rounds)
            options.output.parent.mkdir(exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1) + "\n")
    show(results)
    print(f"written: {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
