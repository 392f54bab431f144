"""What the host does in a step under `cuda_graphs`, with replays that are free: how fast a step can be on any GPU.

    python benchmarks/graph_host.py [--parts step] [--steps 4000] [--cpu-time] [--profile]

The example's CNN, one image a batch, all on the CPU, so that what is computed besides the replays (copies in and out,
the loss) takes next to nothing; without data and without reading the loss. One line of JSON: microseconds a step,
median and quartiles over blocks of 100 steps, of the whole and of its parts. On one thread, on a quiet machine: the
line tells how many processes wanted a core. With `--cpu-time` what other processes took is not counted (but for the
caches and the core's other thread). What is compared (`--parts step` and `all`) is run in turn, each in a
process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from models.cnn import SimpleCNN, loss_of

from overdrive.techniques.compile.cuda_graphs import captured_graph
from overdrive.worker.session import Session

_BLOCK = 100


class _FreeGraph:
    def record(self, work: Callable[[], Any]) -> list[Any]:
        return list(work())

    def replay(self) -> None: ...


class _FreePool:
    def __init__(self, device: torch.device) -> None: ...

    def captured(self) -> _FreeGraph:
        return _FreeGraph()

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        yield []

    def stream(self) -> Any:
        return None

    def random_state(self) -> Any:
        return torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state)


def steps(
    model: Any,
    optimizer: Any,
    count: int,
    spent: dict[str, list[float]],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """`spent`: seconds of each part, step by step."""
    image, label = torch.randn(1, 3, 32, 32), torch.tensor([3])
    for _ in range(count):
        began = clock()
        output = model(image)
        called = clock()
        loss = loss_of(output, label)
        optimizer.zero_grad()
        judged = clock()
        loss.backward()
        back = clock()
        optimizer.step()
        ended = clock()
        marks = (began, called, judged, back, ended)
        for name, one, other in zip(("call", "loss", "backward", "step"), marks, marks[1:], strict=False):
            spent.setdefault(name, []).append(other - one)
        spent.setdefault("all", []).append(ended - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="step", choices=("step", "all"), help="one graph of a step, or three")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of this thread on a core, not of a watch")
    parser.add_argument("--profile", action="store_true", help="where Python's time goes, after the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    captured_graph.CudaGraphPool, captured_graph.DEVICE = _FreePool, "cpu"  # type: ignore[misc]
    with Session([("cuda_graphs", {"parts": options.parts})]) as session:
        model = SimpleCNN()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        steps(model, optimizer, 50, {})  # recorded now
        spent: dict[str, list[float]] = {}
        steps(model, optimizer, options.steps, spent, time.thread_time if options.cpu_time else time.perf_counter)
        left_out = dict(session.seams.left_out)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(steps, model, optimizer, 2000, {})
    found = {name: [round(1e6 * each, 1) for each in _quartiles(seconds)] for name, seconds in spent.items()}
    about = {"torch": torch.__version__, "parts": options.parts, "load": os.getloadavg()[0], "left_out": left_out}
    print(json.dumps({**about, "microseconds": found}))
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def _quartiles(seconds: list[float]) -> list[float]:
    blocks = [statistics.fmean(seconds[at : at + _BLOCK]) for at in range(0, len(seconds), _BLOCK)]
    return statistics.quantiles(blocks, n=4) if len(blocks) > 1 else blocks


if __name__ == "__main__":
    main()
