"""Two minutes on a GPU: every technique that may act there, each in its own process, for a few steps of a small CNN.

python benchmarks/gpu_smoke.py [--device cpu] [--stand-in]     all, as a table
python benchmarks/gpu_smoke.py CASE ...                        one, in this process: what `run` starts

Not a measurement: it tells what is left out and why, what crashes or hangs, and whether the losses are the program's.
Those that find nothing to do in it have another model (_MODELS). An exact technique must give the same bits (cuDNN and
cuBLAS are told to repeat themselves); one that rounds, losses within a few per cent in the first twenty steps; a
statistical one (fp16 skips a step where its gradients overflow, and goes another way from there) in the first five, and
the last ten as low as the program's, or nearly so. With --stand-in it runs on tests/fakes, where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_AT_ONCE = max(3, min(6, (os.cpu_count() or 1) // 3))  # most of a case is a process that starts
_ONE_SECONDS = 60.0  # that a case may take: compiling, for one
_SAMPLES, _BATCH, _EPOCHS = 160, 16, 3
_NEAR = 0.05  # of a loss, where not every bit must be the same
_HIGHER = 1.25  # than the program's, the mean of the last ten losses of another way to learn

# Where those that a tune would try do nothing with so small a program.
_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "unified_memory": [{"gib": 1}],
    "offload": [{"least_mib": 0}],
    "fast_cross_entropy": [{"least": 1}],
}

# Instead of the CNN: batch normalisation has no parts of a batch, and small kernels need no transform.
_MODELS = {"micro_batch": "mlp", "fft_convolution": "wide"}

Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Techniques with their settings, the device that the program itself asks for, and its model."""

    techniques: tuple[tuple[str, dict[str, Any]], ...]
    on: str = "cuda"
    model: str = "cnn"

    @property
    def name(self) -> str:
        told = [name + "".join(f" {value}" for value in settings.values()) for name, settings in self.techniques]
        return " + ".join(told) or "plain"


def cases(tiny: bool = False) -> list[Case]:
    """What the catalogue has for a PyTorch program on a GPU, two settings of each; and all exact ones together."""
    from overdrive.core.contract import Contract
    from overdrive.core.facts import Facts, LoaderFacts
    from overdrive.techniques.catalogue import catalogue

    facts = Facts(
        device="cuda", compute_capability=9.0, bf16_fast=True, parameters=6, parameter_dtypes=("torch.float32",),
        convolutions=1, cores=4, step_seconds=0.001,
        loaders=(LoaderFacts(_BATCH, 0, True, _SAMPLES // _BATCH, 0.1),),
        shares={"data": 0.2, "forward": 0.3, "backward": 0.3, "optimizer": 0.1, "other": 0.1},
    )  # fmt: skip
    found = [Case(())]
    for name, technique in catalogue().items():
        on = "cpu" if name == "device" else "cuda"
        if "torch" not in technique.frameworks or not technique.is_for(False):
            continue
        if technique.applies(facts) and name != "device":
            continue
        if technique.contract is Contract.OPEN or (tiny and name == "compile"):
            continue
        also = (("sample_cache", {}),) if name in ("prefetch", "device_resident") else ()
        settings = list(technique.candidates(facts))[:2] or [technique.defaults()]
        settings = _SETTINGS.get(name, settings)
        found += [Case((*also, (name, dict(each))), on, _MODELS.get(name, "cnn")) for each in settings]
    together = ("sample_cache", "device_resident", "deferred_scalars", "cuda_graphs")
    found.append(Case(tuple((name, {}) for name in together)))
    # What compiles takes half a minute and all cores: last, so that no other case waits for it.
    return sorted(found, key=lambda case: case.techniques[:1] != () and case.techniques[0][0] == "compile")


# -- one case, in a process of its own ----------------------------------------------------------------


def train(case: Case, device: str) -> tuple[list[float], dict[str, str]]:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from overdrive.worker.session import Session

    torch.manual_seed(0)
    losses: list[Any] = []
    with Session(case.techniques) as session:
        images = torch.rand(_SAMPLES, 3, 16, 16)
        data = TensorDataset(images, (images.mean((1, 2, 3)) * 1000).long() % 10)
        model = model_of(case.model).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(_EPOCHS):
            for batch, labels in DataLoader(data, _BATCH, shuffle=True, pin_memory=device == "cuda"):
                loss = nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses, dict(session.seams.left_out)


def model_of(name: str) -> Any:
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 64), nn.ReLU(), nn.Linear(64, 10))
    if name == "wide":
        return nn.Sequential(nn.Conv2d(3, 6, 15, padding=7), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 256, 10))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 49, 10)
    )


def one(case: Case, device: str) -> Result:
    """The case beside the program as it is."""
    import torch

    from overdrive.core.contract import Contract
    from overdrive.techniques.catalogue import catalogue

    contracts = {catalogue()[name].contract for name, _ in case.techniques}
    exact = contracts <= {Contract.EXACT}
    torch.backends.cudnn.deterministic = exact  # library_autotune is left out where it is
    plain, _ = train(Case((), case.on, case.model), device if case.on == "cuda" else "cpu")
    began = time.monotonic()
    losses, left_out = train(case, device if case.on == "cuda" else "cpu")
    result: Result = {"seconds": round(time.monotonic() - began, 2), "left_out": left_out}
    if exact:
        result["same"] = losses == plain
    elif contracts <= {Contract.EXACT, Contract.ROUNDING}:
        result["same"] = _near(losses[:20], plain)
    else:
        result["same"] = _near(losses[:5], plain) and fmean(losses[-10:]) <= _HIGHER * fmean(plain[-10:])
    result["loss"] = [plain[-1], losses[-1]]
    return result


def _near(some: list[float], others: list[float]) -> bool:
    return all(abs(a - b) <= _NEAR * abs(b) + _NEAR for a, b in zip(some, others, strict=False))


# -- all of them --------------------------------------------------------------------------------------


def run(
    wanted: list[Case],
    device: str,
    stand_in: bool,
    seconds: float,
    keep: Callable[[str, Result], None],
    at_once: int | None = None,
) -> dict[str, Result]:
    """Each case in its process, some at once; `keep` is told of each when it is done."""
    end = time.monotonic() + seconds
    found: dict[str, Result] = {}

    def started(case: Case) -> None:
        left = end - time.monotonic()
        result: Result = {"not_run": "no time was left"}
        if left > 5:
            result = _in_a_process(case, device, stand_in, min(left, _ONE_SECONDS))
        found[case.name] = result
        keep(case.name, result)

    with ThreadPoolExecutor(at_once or _AT_ONCE) as threads:
        list(threads.map(started, wanted))
    return found


def _in_a_process(case: Case, device: str, stand_in: bool, seconds: float) -> Result:
    from overdrive.techniques.catalogue import environment_for

    told = json.dumps([case.techniques, case.on, case.model])
    command = [sys.executable, __file__, told, "--device", device, *(["--stand-in"] if stand_in else [])]
    places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        **environment_for(case.techniques),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OVERDRIVE_PREFILL": "1",
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end after {seconds:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"signal {-done.returncode}"])[-1]
        return {"failed": f"exit code {done.returncode}: {last[:300]}"}
    return dict(json.loads(lines[-1]))


def well(result: Mapping[str, Any]) -> bool:
    """Whether it came to its end with the program's results, acting or left out with a reason."""
    return bool(result.get("same"))


def table(results: Mapping[str, Result]) -> list[str]:
    lines = ["| technique | result | losses | left out |", "|---|---|---|---|"]
    for name, each in results.items():
        if "same" not in each:
            lines.append(f"| {name} | {each.get('failed') or each.get('not_run')} | | |")
            continue
        reasons = "; ".join(f"{which}: {why}" for which, why in each["left_out"].items())
        state = "left out" if reasons else "acts"
        lines.append(f"| {name} | {state} | {'as the program' if each['same'] else 'DIFFER'} | {reasons} |")
    return lines


@contextlib.contextmanager
def gpu_or_stand_in(stand_in: bool) -> Iterator[None]:
    if not stand_in:
        yield
        return
    sys.path.insert(0, str(ROOT))
    from tests.fakes.cuda import fake_cuda

    with fake_cuda() as gpu:
        yield
    if gpu.order.found:
        raise RuntimeError(f"a race: {gpu.order.found[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    if options.case:
        techniques, *more = json.loads(options.case)
        with gpu_or_stand_in(options.stand_in):
            result = one(Case(tuple((name, settings) for name, settings in techniques), *more), options.device)
        print(json.dumps(result))
        return 0
    wanted = cases(tiny=options.device == "cpu" or options.stand_in)
    found = run(wanted, options.device, options.stand_in, options.seconds, lambda *_: None)
    print("\n".join(table(found)))
    return 0 if all(well(each) or "not_run" in each for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
