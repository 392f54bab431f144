"""What `overdrive run --layout` names."""

from __future__ import annotations

import math

from overdrive.cli.line import fail
from overdrive.core.settings import Chosen

HELP = (
    "What the ranks divide: data=N (each batch, the default), zero1=N (and the optimizer's state), shard=N (and "
    "gradients and parameters), tensor=N (layers) or pipeline=N (the model, into stages); data=N,pipeline=M is N "
    "replicas of M stages."
)
_DIVIDED = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel"}  # models
_SHARDS = {"data": "nothing", "zero1": "state", "shard": "all"}


def technique_of(layout: str, ranks: int) -> Chosen:
    """What divides the work: "tensor=2" divides the model's layers over two ranks, "data=2" each batch."""
    counts = {}
    for part in layout.split(","):
        kind, _, count = part.partition("=")
        if kind in counts or kind not in (*_SHARDS, *_DIVIDED) or not count.isdigit():
            fail(
                f"--layout {layout} is not understood: give data=N, zero1=N, shard=N, tensor=N, pipeline=N or "
                "data=N,pipeline=M."
            )
        counts[kind] = int(count)
    if len(counts) > 1 and counts.keys() != {"data", "pipeline"}:
        fail(f"--layout {layout}: only data=N and pipeline=M can be given together.")
    if math.prod(counts.values()) != ranks:
        fail(f"--layout {layout} is for {math.prod(counts.values())} ranks, and there are {ranks}.")
    if "pipeline" in counts:
        return "pipeline_parallel", {"replicas": counts.get("data", 1)}
    (kind,) = counts
    return (_DIVIDED[kind], {}) if kind in _DIVIDED else ("data_parallel", {"ranks": ranks, "shards": _SHARDS[kind]})
