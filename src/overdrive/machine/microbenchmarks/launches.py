"""What it costs to give the device something to do: of a GPU a kernel and a recorded graph, of a CPU an operation."""

from __future__ import annotations

import torch

from overdrive.machine.microbenchmarks.best import Measurements, best_seconds

_MANY = 200


def measure_operation(answer: Measurements) -> None:
    """Puts `cpu.operation`: seconds that PyTorch takes for an addition of one number, from Python."""
    one = torch.zeros(1)
    seconds = best_seconds(lambda: [one.add_(1.0) for _ in range(_MANY)], answer.share) / _MANY
    answer.put("cpu.operation", seconds, "s", "an addition in place to a tensor of one element, called from Python")


def measure_launches(answer: Measurements) -> None:
    """Puts, in seconds: `cuda.launch` (back to back), `cuda.launch_and_wait`, `cuda.graph_kernel` (in a graph)."""
    one = torch.zeros(1, device="cuda")
    wait = torch.cuda.synchronize

    def many() -> None:
        for _ in range(_MANY):
            one.add_(1.0)

    def single() -> None:
        answer.put(
            "cuda.launch",
            best_seconds(many, answer.share, wait) / _MANY,
            "s",
            f"{_MANY} additions to one element, then a wait",
        )
        answer.put(
            "cuda.launch_and_wait", best_seconds(lambda: one.add_(1.0), answer.share, wait), "s", "one, and a wait"
        )

    def graph() -> None:
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            many()
        seconds = best_seconds(recorded.replay, answer.share, wait) / _MANY
        answer.put("cuda.graph_kernel", seconds, "s", f"a graph of {_MANY} such additions, replayed")

    answer.attempt("cuda.launch", single)
    answer.attempt("cuda.graph_kernel", graph)
