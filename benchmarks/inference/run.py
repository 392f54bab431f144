"""Tunes inference programs: python benchmarks/inference/run.py [--contract rounding] [--fresh 600] [NAME...]

Beside the programs of this folder, with --public FOLDER, scripts that nobody here wrote, from clones in it (`nanoGPT`,
`examples`), with weights that were drawn, not trained. With --fresh each program then runs for so many seconds under
its plan: p50 and p99 of its calls stand beside those that the tune stated. ResNet-50 and MobileNetV3 need torchvision,
and are left out where it is not there, and so are Keras's without TensorFlow. Other libraries by hand: engines.py.
Speeds are those of the tunes' confirmations: fresh pairs of processes, the untouched program and the plan in
alternating blocks, 95 % intervals. Writes benchmarks/results/inference.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from overdrive.machine.inventory import summary

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "inference.json"
OWN: dict[str, tuple[str, ...]] = {
    "resnet18, 224, batch 16": ("resnet18.py", "--pictures", "100000"),
    "resnet18, 224, batch 1": ("resnet18.py", "--pictures", "100000", "--batch", "1"),
    "resnet18, 32, batch 64": ("resnet18.py", "--pictures", "1000000", "--batch", "64", "--size", "32"),
    "encoder, 1 x 64": ("encoder.py", "--requests", "1000000"),
    "encoder, 32 x 128": ("encoder.py", "--requests", "100000", "--batch", "32", "--tokens", "128"),
    "gpt, 64 tokens": ("gpt.py", "--requests", "1000000"),
    "tagger without no_grad": ("forgetful.py", "--requests", "1000000"),
    "perceptron, 32 rows": ("perceptron.py", "--requests", "10000000"),
    "resnet50, 224, batch 16": ("known_models.py", "resnet50", "--pictures", "100000"),
    "mobilenet_v3, 224, batch 1": ("known_models.py", "mobilenet_v3_large", "--pictures", "1000000", "--batch", "1"),
    "keras mnist, predict": ("mnist_keras.py", "--requests", "1000000"),
    "keras mnist, model(x)": ("mnist_keras.py", "--requests", "1000000", "--ask", "call"),
}
NEEDS = {"known_models.py": "torchvision", "mnist_keras.py": "tensorflow"}
NANOGPT = """
import pickle, sys, torch
from model import GPT, GPTConfig
settings = dict(n_layer=6, n_head=6, n_embd=192, block_size=64, bias=False, vocab_size=65, dropout=0.0)
torch.manual_seed(0)
torch.save({"model": GPT(GPTConfig(**settings)).state_dict(), "model_args": settings, "config": {"dataset": "chars"}},
           "out/ckpt.pt")
letters = [chr(10), *map(chr, range(32, 96))]
tables = {"stoi": {c: n for n, c in enumerate(letters)}, "itos": dict(enumerate(letters))}
pickle.dump(tables, open("data/chars/meta.pkl", "wb"))
"""
WORDS = """
import torch, data
from model import RNNModel
torch.manual_seed(0)
torch.save(RNNModel("LSTM", len(data.Corpus("data/wikitext-2").dictionary), 200, 200, 2, 0.2), "model.pt")
"""


def public(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Their scripts with the words that follow; weights are made where there are none."""
    gpt, words = folder / "nanoGPT", folder / "examples" / "word_language_model"
    for place, code, made in ((gpt, NANOGPT, gpt / "out" / "ckpt.pt"), (words, WORDS, words / "model.pt")):
        if not made.exists():
            (place / "out").mkdir(exist_ok=True)
            (place / "data" / "chars").mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-c", code], cwd=place, check=True)
    return {
        "nanoGPT sample.py": (gpt, ("sample.py", "--device=cpu", "--dtype=float32", "--num_samples=10000")),
        "examples word_language_model generate.py": (words, ("generate.py", "--words", "10000000")),
    }


def tuned(folder: Path, words: tuple[str, ...], contract: str, budget: str, fresh: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "result.json"
        if folder == HERE:  # the plan is written beside the script
            for name in (words[0], "fitted.py"):
                shutil.copy(HERE / name, place)
            folder = Path(place)
        options = ["--contract", contract, "--budget", budget, "--json", str(result), "--force"]
        command = [sys.executable, "-m", "overdrive", "tune", *options, *words]
        done = subprocess.run(command, cwd=folder, env=dict(os.environ), stdout=sys.stderr)
        if not result.exists():
            return {"exit_code": done.returncode}
        found = json.loads(result.read_text())
        again = ran(folder, words, fresh, Path(place)) if fresh and found["techniques"] else None
    names = ("verdict", "speedup", "unconfirmed", "noise_floor", "check", "tuning_seconds", "next_step")
    return {
        **{name: found[name] for name in names},
        "techniques": {each["name"]: each["speedup"] for each in found["techniques"]},
        "rejected": {each["name"]: each["reason"] for each in found["rejected"] if each["kind"] == "measured"},
        "before": found["baseline"] and found["baseline"]["seconds_per_step"],
        "after": found["tuned"] and found["tuned"]["seconds_per_step"],
        "stated": found["tuned"] and {name: found["tuned"][name] for name in ("half", "most")},
        "fresh": again,
    }


def ran(folder: Path, words: tuple[str, ...], seconds: float, place: Path) -> dict[str, Any]:
    """p50 and p99 of its calls in a run of so long under its plan."""
    record = place / "record.json"
    command = [sys.executable, "-m", "overdrive", "run", "--record", str(record), *words]
    # A shell has what it starts in the background ignore Ctrl-C, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=folder, stdout=sys.stderr) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # its record is written as it ends
    found = json.loads(record.read_text())
    return {"seconds": seconds, "calls": found["steps"], "half": found["half"], "most": found["most"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the programs whose names begin so; all by default")
    parser.add_argument("--public", type=Path)
    parser.add_argument("--contract", default="rounding", choices=("exact", "rounding", "statistical"))
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--fresh", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args()
    programs = {name: (HERE, words) for name, words in OWN.items()}
    if args.public:
        programs |= public(args.public.resolve())
    rows = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    for name, (folder, words) in programs.items():
        if args.names and not any(name.startswith(each) for each in args.names):
            continue
        if (needed := NEEDS.get(words[0])) and not find_spec(needed):
            print(name, f"needs {needed}", flush=True)
            continue
        row = tuned(folder, words, args.contract, args.budget, args.fresh)
        row |= {"date": datetime.date.today().isoformat(), "budget": args.budget, "cpu": summary().cpu}
        rows[f"{name}, {args.contract}"] = row
        print(name, json.dumps(row), flush=True)
        RESULTS.write_text(json.dumps({"programs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
