"""The Keras example on real MNIST: what tuning it gains, and what becomes of 16-bit arithmetic under the proof.

python benchmarks/keras_mnist.py [--only speed,as_it_is,normalised,every_layer] [--rounds 5], where Keras and
TensorFlow are installed. Writes benchmarks/results/keras.json.

The example's images go from 0 to 255, as in many first programs; 16 bits in all layers stop it from learning.
`normalised` is the same script with its images divided by 255, where nothing is known against it; `every_layer` is
Keras's policy as it is switched on by hand, for the layer of the outputs too, on the example as it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from alternate import OVERDRIVE, ROOT, Arm, alternate, ratio
from run import DATA, RESULTS, recorded, short, tune

from overdrive.core.contract import Contract
from overdrive.core.json_data import to_json
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.machine.inventory import machine, versions
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.result import result_of
from overdrive.tuner.tune import tune as run_tune

HERE = Path(__file__).parent
EXAMPLE = ROOT / "examples" / "mnist_keras.py"
WORDS = ("--data", str(DATA / "mnist"), "--epochs", "2")


def speed(folder: Path, rounds: int) -> dict[str, Any]:
    """At the default contract: seconds a step over whole runs of two epochs."""
    words = (str(EXAMPLE), *WORDS)
    found = tune(folder, "rounding", words)
    record = folder / "record.json"
    run = (*OVERDRIVE, "run", "--record", str(record))
    arms = [
        Arm("plain", (*run, "--no-plan", *words), recorded(record)),
        Arm("overdrive rounding", (*run, "--plan", str(folder / "rounding.toml"), *words), recorded(record)),
    ]
    seconds = alternate(arms, rounds, folder)
    return {
        "tune": short(found),
        "seconds_per_step": seconds,
        "speedup": vars(ratio(seconds, "plain", "overdrive rounding")),
    }


def bf16(folder: Path, script: Path) -> dict[str, Any]:
    found = tune(folder, "statistical", ("--techniques", "mixed_precision", str(script), *WORDS))
    return short(found)


def as_it_is(folder: Path, rounds: int) -> dict[str, Any]:
    """Images from 0 to 255: is 16-bit arithmetic refused?"""
    return bf16(folder, EXAMPLE)


def normalised(folder: Path, rounds: int) -> dict[str, Any]:
    """Images from 0 to 1: what is said of 16-bit arithmetic on its merits?"""
    script = folder / "mnist_keras_normalised.py"
    text = EXAMPLE.read_text()
    script.write_text(text.replace('.astype("float32")', '.astype("float32") / 255'))
    assert script.read_text().count("/ 255") == 2
    return bf16(folder, script)


def every_layer(folder: Path, rounds: int) -> dict[str, Any]:
    """Images from 0 to 255, and Keras's policy for all layers: is it refused by the proof?"""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = Program.parse((str(EXAMPLE), *WORDS))
    contract, only = Contract.STATISTICAL, frozenset({"every_layer"})
    checkpoint = TuneCheckpoint(Ledger.open(folder / "ledger"), program, "every layer")
    with TrialPool(also=["planted_policy"]) as pool:
        found = run_tune(TuneRequest(program, contract, 480.0, only=only), pool, checkpoint, Printed())
    return short({**to_json(result_of(found, "")), "wall_seconds": found.seconds})


class Printed(Progress):
    def stage(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def outcome(self, text: str) -> None:
        print(f"    {text}", flush=True)


PARTS = {"speed": speed, "as_it_is": as_it_is, "normalised": normalised, "every_layer": every_layer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    target = RESULTS / "keras.json"
    results = json.loads(target.read_text()) if target.exists() else {}
    for name in options.only.split(","):
        print(f"== {name}: {(PARTS[name].__doc__ or '').splitlines()[0]}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            part = PARTS[name](Path(folder), options.rounds)
        results[name] = {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "versions": versions(),
            "load_average": os.getloadavg()[1],
            **part,
        }
        target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {target}")


if __name__ == "__main__":
    main()
