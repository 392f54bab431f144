"""`python -m overdrive.machine.pool ANSWER.json [quick]`: one rank of the measurement; rank 0 writes the answer."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from overdrive.machine.pool.collectives import Pool
from overdrive.machine.pool.reading import reading

distributed: Any = torch.distributed

_PATIENCE = timedelta(seconds=120)  # NCCL takes ten seconds to start on eight GPUs, a host's first import a minute


def main() -> None:
    environment = os.environ
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    agents = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = distributed.TCPStore(address, port, None, not agents and rank == 0, timeout=_PATIENCE)
    store.set(f"pool/reading/{rank}", json.dumps(reading(address)))
    local = int(environment.get("LOCAL_RANK", rank))
    store.set(f"pool/gpu/{rank}", str(int(_has_gpu(local))))
    device = "cuda" if all(store.get(f"pool/gpu/{each}") == b"1" for each in range(size)) else "cpu"
    if device == "cuda":
        torch.cuda.set_device(local)
    backend = "nccl" if device == "cuda" else "gloo"
    within = distributed.PrefixStore("pool", store)
    distributed.init_process_group(backend, store=within, rank=rank, world_size=size, timeout=_PATIENCE)
    pool = Pool(device)
    seconds = pool.measure("quick" in sys.argv[2:])
    answer = {
        "backend": backend,
        "ranks": [json.loads(store.get(f"pool/reading/{each}")) for each in range(size)],
        "seconds": {name: list(times.items()) for name, times in seconds.items()},
        "busy": pool.busy(),
        "memory": pool.by_memory(),
        "pairs": pool.pairs(),
    }
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(answer))
    distributed.barrier()
    distributed.destroy_process_group()


def _has_gpu(local: int) -> bool:
    """Of its own, that NCCL can use: then all must have one."""
    return torch.cuda.device_count() > local and bool(distributed.is_nccl_available())


if __name__ == "__main__":
    main()
