"""Fetching data, by itself: plain DataLoader, Overdrive, ffcv, WebDataset, MosaicML Streaming, Hugging Face datasets.

python benchmarks/data.py [--samples 50000] [--rounds 5] [--minutes 9] [--only fetch,augmented]

Every arm fetches the same CIFAR-10 JPEG images, decodes and normalises them, 64 at a time, one epoch, with
the files in the page cache; nothing is trained. Overdrive's arms start with an empty cache: their first
epoch is the one that fills it, their second the one that is compared. Peers' own formats are written
before, and that is not timed; ffcv compiles in its first epoch, so its second is compared. Peers that are not
installed are left out (ffcv builds with Debian's libopencv-dev, libturbojpeg0-dev and pkg-config). As many rounds
are made as fit into the time, three at least. Writes benchmarks/results/data.json.

The part `cached` is what is left when nothing is decoded any more: the last of several epochs from the cache, against
a loop that does nothing but copy the rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from alternate import OVERDRIVE, ROOT, Arm, alternate, ratio

from overdrive.machine.inventory import machine, versions
from overdrive.techniques.catalogue import catalogue

DATA = ROOT.parent / "shared" / "data" / "cifar10-jpeg-train.zip"
PEERS = ROOT / "benchmarks" / "peers"
TARGET = ROOT / "benchmarks" / "results" / "data.json"
PLAIN = "plain, no workers"
FEWEST_ROUNDS = 3
Result = dict[str, Any]

# name: script, words, module that it needs, distribution whose version is told
OTHERS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "plain, 2 workers": ("data_plain.py", ("--workers", "2"), "torch", "torch"),
    "WebDataset, 2 workers": ("data_webdataset.py", (), "webdataset", "webdataset"),
    "Streaming, 2 workers": ("data_streaming.py", (), "streaming", "mosaicml-streaming"),
    "HF datasets, 2 workers": ("data_hf.py", (), "datasets", "datasets"),
    "HF datasets, mapped, 2 workers": ("data_hf.py", ("--mapped",), "datasets", "datasets"),
    "ffcv, JPEG, 2 threads": ("data_ffcv.py", ("--epochs", "2"), "ffcv", "ffcv"),
    "ffcv, decoded, 2 threads": ("data_ffcv.py", ("--raw", "--epochs", "2"), "ffcv", "ffcv"),
}
BARE = "rows copied, no loader"
# part: Overdrive's technique, words that all arms get, arms that have no such way, epochs of which the last counts
PARTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], int]] = {
    "fetch": ("sample_cache", (), (), 2),
    "augmented": ("prefix_cache", ("--augment",), ("HF datasets, mapped, 2 workers",), 2),
    "cached": ("sample_cache", (), tuple(arm for arm in OTHERS if "ffcv, decoded" not in arm), 6),
}


class Seen:
    """What the arms' runs told, besides the seconds that are compared."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.label_sum: int | None = None
        self.first_epochs: dict[str, list[float]] = {}
        self.techniques: dict[str, Any] = {}

    def measure(self, name: str, record: Path | None = None, cache: Path | None = None) -> Callable[..., float]:
        def last_epoch(output: str, wall: float) -> float:
            answer = json.loads(output.strip().splitlines()[-1])
            self.label_sum = answer["label_sum"] if self.label_sum is None else self.label_sum
            if (answer["samples"], answer["label_sum"]) != (self.samples, self.label_sum):
                raise RuntimeError(f"{name} did not see every sample once: {answer}")
            self.first_epochs.setdefault(name, []).append(answer["seconds"][0])
            if record is not None:
                self.techniques[name] = {key: json.loads(record.read_text())[key] for key in ("techniques", "left_out")}
            if cache is not None:
                shutil.rmtree(cache, ignore_errors=True)  # the next run is to fill it again
                cache.mkdir(mode=0o700, exist_ok=True)
            return float(answer["seconds"][-1])

        return last_epoch


def command(script: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, str(PEERS / script), *words)


def part(name: str, data: tuple[str, ...], samples: int, rounds: int, until: float, folder: Path) -> Result:
    technique, also, without, epochs = PARTS[name]
    common = (*data, "--samples", str(samples), *also)
    seen = Seen(samples)
    arms = [Arm(PLAIN, command("data_plain.py", *common, "--workers", "0"), seen.measure(PLAIN))]
    left_out: dict[str, str] = {}
    if epochs > 2:
        bare = command("data_plain.py", *common, "--rows", "--bare", "--epochs", "6")
        arms.append(Arm(BARE, bare, seen.measure(BARE)))
    for arm, (script, words, module, _) in OTHERS.items():
        if arm in without:
            reason: str | None = "has no such way"
        elif find_spec(module) is None:
            reason = "is not installed"
        else:
            reason = _prepare(command(script, *common, *words))
        if reason:
            left_out[arm] = reason
        else:
            arms.append(Arm(arm, command(script, *common, *words), seen.measure(arm)))
    if technique in catalogue():
        arms.append(_overdrive(technique, common, seen, folder, epochs))
    else:
        left_out[f"Overdrive {technique}"] = "not there"
    for arm, reason in left_out.items():
        print(f"  {arm}: {reason}", flush=True)
    seconds = _rounds(arms, rounds, until, folder)
    ours = f"Overdrive {technique}"
    return {
        "seconds": seconds,
        "images_per_s": {arm: round(samples / statistics.median(each)) for arm, each in seconds.items()},
        "against_plain": {arm.name: vars(ratio(seconds, PLAIN, arm.name)) for arm in arms[1:]},
        "first_epoch": _first_epoch(seen, seconds, ours),
        "techniques": seen.techniques,
        "left_out": left_out,
    }


def _rounds(arms: list[Arm], rounds: int, until: float, folder: Path) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    longest = 0.0
    for turn in range(rounds):
        began = time.monotonic()
        if turn >= FEWEST_ROUNDS and began + longest > until:
            break
        print(f"  round {turn + 1}", flush=True)
        for name, each in alternate(arms, 1, folder, seed=turn).items():
            seconds[name] += each
        longest = max(longest, time.monotonic() - began)
    return seconds


def _overdrive(technique: str, common: tuple[str, ...], seen: Seen, folder: Path, epochs: int) -> Arm:
    plan, record, cache = folder / f"{technique}.toml", folder / "record.json", folder / "cache"
    plan.write_text(
        f'overdrive = 1\nprogram = "data_plain.py"\ncontract = "exact"\n[[technique]]\nname = "{technique}"\n'
    )
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ["OVERDRIVE_CACHE"] = str(cache)
    name = f"Overdrive {technique}"
    run = ("run", "--plan", str(plan), "--record", str(record), str(PEERS / "data_plain.py"))
    words = (*common, "--workers", "0", "--epochs", str(epochs))
    return Arm(name, (*OVERDRIVE, *run, *words), seen.measure(name, record, cache))


def _prepare(words: tuple[str, ...]) -> str | None:
    """Let a peer write its own format; why it cannot, if so."""
    done = subprocess.run((*words, "--prepare"), capture_output=True, text=True)
    return None if done.returncode == 0 else f"fails: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}"


def _first_epoch(seen: Seen, seconds: dict[str, list[float]], ours: str) -> Result | None:
    """The epoch in which the cache is filled, against the same epoch without: above 1 it costs nothing."""
    if ours not in seen.first_epochs:
        return None
    both = {PLAIN: seconds[PLAIN], ours: seen.first_epochs[ours]}
    return {"seconds": seen.first_epochs[ours], "against_plain": vars(ratio(both, PLAIN, ours))}


def peer_versions() -> dict[str, str]:
    found = {}
    for name in sorted({distribution for _, _, _, distribution in OTHERS.values()} | {"pillow"}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--data", default=str(DATA), help="folder with train/ and test/, or the train zip")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    began = time.monotonic()
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    data = ("--data", options.data)
    subprocess.run(command("data_plain.py", *data, "--prepare"), check=True)
    names = options.only.split(",")
    for position, name in enumerate(names):
        left = began + 60 * options.minutes - time.monotonic()
        until = time.monotonic() + left / (len(names) - position)
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = part(name, data, options.samples, options.rounds, until, Path(folder))
        results[name] = {
            "date": datetime.date.today().isoformat(),
            "samples": options.samples,
            "machine": machine(),
            "versions": {**versions(), **peer_versions()},
            "load_average": os.getloadavg()[1],
            **found,
        }
        options.output.parent.mkdir(exist_ok=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n")
        for arm, speed in found["images_per_s"].items():
            print(f"  {arm:32} {speed:10,} images/s")
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
