"""One rank of an all-reduce: python -m overdrive.machine.microbenchmarks.rank BACKEND RANK RANKS FOLDER SECONDS."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

_ELEMENTS = 25 * (1 << 20) // 4  # 25 MiB: a bucket of DistributedDataParallel


def main() -> None:
    backend, rank, ranks, folder, share = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        Path(sys.argv[4]),
        sys.argv[5],
    )
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=30),
    )

    def best(tensor: torch.Tensor, repetitions: int) -> float:
        found = float("inf")
        for _ in range(repetitions):
            distributed.barrier()
            _wait(device)
            began = time.perf_counter()
            distributed.all_reduce(tensor)
            _wait(device)
            found = min(found, time.perf_counter() - began)
        return found

    large = torch.zeros(_ELEMENTS, device=device)
    # As many on every rank: they must agree without talking about it.
    seconds = best(large, max(4, int(float(share) * 40)))
    latency = best(torch.zeros(1, device=device), 50)
    if rank == 0:
        result = {"bytes": large.nbytes, "seconds": seconds, "latency": latency}
        (folder / "answer.json").write_text(json.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
