"""`python -m overdrive.machine.microbenchmarks ANSWER.json [quick]`: measure this machine's limits into that file."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path


def main() -> None:
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed in this environment")
    from overdrive.machine.cpu import busy_share, computing_cores
    from overdrive.machine.microbenchmarks.best import Measurements
    from overdrive.machine.microbenchmarks.launches import measure_launches, measure_operation
    from overdrive.machine.microbenchmarks.links import measure_all_reduce
    from overdrive.machine.microbenchmarks.memory import measure_memory, measure_transfers, need_gpu
    from overdrive.machine.microbenchmarks.products import measure_products
    from overdrive.machine.microbenchmarks.storage import measure_jpeg, measure_storage

    quick = "quick" in sys.argv[2:]
    answer = Measurements(quick, seconds=12.0 if quick else 48.0)
    busy = busy_share(0.3)
    threads = computing_cores()
    torch.set_num_threads(threads)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if gpu:
        measure_products(answer, "cuda", "cuda.")
        measure_memory(answer, "cuda", "cuda.")
        measure_transfers(answer)
        measure_launches(answer)
        torch.cuda.empty_cache()
    else:
        answer.attempt("cuda", need_gpu)
    measure_products(answer, "cpu", "cpu.")
    measure_memory(answer, "cpu", "cpu.")
    answer.attempt("cpu.operation", lambda: measure_operation(answer))
    if threads > 1:
        torch.set_num_threads(1)
        measure_products(answer, "cpu", "cpu.1.", ("fp64", "fp32", "bf16"))
        measure_memory(answer, "cpu", "cpu.1.")
        torch.set_num_threads(threads)
    folder = Path(os.environ.get("OVERDRIVE_LIMITS_FOLDER") or Path.cwd())
    answer.attempt("jpeg.decode", lambda: measure_jpeg(answer))
    answer.attempt("storage", lambda: measure_storage(answer, folder))
    for backend in ("gloo", "nccl"):
        answer.attempt(f"all_reduce.{backend}", partial(measure_all_reduce, answer, backend))
    results = {
        "measures": answer.measures,
        "missing": answer.missing,
        "notes": answer.notes,
        "threads": threads,
        "gpu": gpu,
        "busy_share": busy,
    }
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
