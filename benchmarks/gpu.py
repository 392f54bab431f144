"""`make gpu`: the GPU tests and benchmarks in one command, under 10 minutes. Writes benchmarks/results/gpu.json.

Uses the machine's own Python and PyTorch; installs nothing. Without a GPU it says so and writes nothing.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EPOCHS = {"batch 64": 64, "batch 512": 512}


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("There is no GPU here: nothing was run, and benchmarks/results/gpu.json stays as it is.")
        return 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    tests = subprocess.call([sys.executable, "-m", "pytest", "-q", "tests/gpu"], cwd=ROOT, env=environment)
    results: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "tests_passed": tests == 0,
        "tunes": {},
    }
    tunes: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, batch in EPOCHS.items():
            out = Path(folder) / f"{batch}.json"
            command = [
                sys.executable, "-m", "overdrive", "tune", "--contract", "statistical", "--budget", "3m",
                "-o", str(Path(folder) / f"{batch}.toml"), "--json", str(out),
                "examples/cifar_cnn.py", "--batch-size", str(batch), "--epochs", "1000",
            ]  # fmt: skip
            if subprocess.call(command, cwd=ROOT, env=environment) == 0 and out.exists():
                found = json.loads(out.read_text())
                tunes[name] = {
                    key: found[key]
                    for key in ("verdict", "speedup", "noise_floor", "baseline", "tuned", "techniques", "rejected")
                }
    results["tunes"] = tunes
    target = Path(os.environ.get("OUT", ROOT / "benchmarks/results")) / "gpu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {target}")
    return tests


if __name__ == "__main__":
    sys.exit(main())
