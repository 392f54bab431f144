"""All-reduce between processes of this machine: what data parallelism on it has to pay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch

from overdrive.core.scratch import passing
from overdrive.machine.microbenchmarks.best import Measurements, NotMeasured

_PATIENCE = 40.0  # seconds; NCCL takes ten to start on eight GPUs


def measure_all_reduce(answer: Measurements, backend: str) -> None:
    """Puts `all_reduce.BACKEND` (B/s, algorithm bandwidth: bytes of the tensor by seconds) and `….latency` (s)."""
    if not torch.distributed.is_available():
        raise NotMeasured("this PyTorch was built without torch.distributed")
    ranks = 2
    if backend == "nccl":
        ranks = torch.cuda.device_count()
        if ranks < 2:
            raise NotMeasured(f"it takes two GPUs, and there {'is one' if ranks else 'are none'}")
        if not torch.distributed.is_nccl_available():
            raise NotMeasured("this PyTorch was built without NCCL")
    result = _told_by_ranks(backend, ranks, answer.share)
    name = f"all_reduce.{backend}"
    bus = 2 * (ranks - 1) / ranks
    answer.put(
        name,
        result["bytes"] / result["seconds"],
        "B/s",
        f"{result['bytes'] / 1e6:.0f} MB of fp32 between {ranks} ranks; times {bus:.3g} is what each link carries",
    )
    answer.put(f"{name}.latency", result["latency"], "s", f"one number between {ranks} ranks")


def _told_by_ranks(backend: str, ranks: int, share: float) -> dict[str, Any]:
    """What rank 0 of them measured.

    Raises:
        NotMeasured: they do not come to an end, or fail.
    """
    with passing("overdrive-ranks-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's own name need not lead back to it
        command = [sys.executable, "-m", "overdrive.machine.microbenchmarks.rank"]
        started = [
            subprocess.Popen(
                [*command, backend, str(rank), str(ranks), str(folder), str(share)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
            )
            for rank in range(ranks)
        ]
        try:
            errors = [process.communicate(timeout=_PATIENCE)[1] for process in started]
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"the ranks did not come to an end within {_PATIENCE:.0f} s") from None
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        try:
            told: dict[str, Any] = json.loads((folder / "answer.json").read_text())
        except (OSError, ValueError):
            lines = [line for error in errors for line in error.decode(errors="replace").strip().splitlines()[-1:]]
            raise NotMeasured(lines[0][:160] if lines else "the ranks ended without an answer") from None
    return told
