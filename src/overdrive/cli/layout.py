"""What `overdrive run --layout` names."""

from __future__ import annotations

from overdrive.cli.line import fail
from overdrive.core.settings import Chosen

HELP = (
    "What the ranks divide: data=N (each batch, the default), zero1=N (and the optimizer's state), shard=N (and "
    "gradients and parameters), tensor=N (layers) or pipeline=N (the model, into stages)."
)
_DIVIDED = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel"}  # models
_SHARDS = {"data": "nothing", "zero1": "state", "shard": "all"}


def technique_of(layout: str, ranks: int) -> Chosen:
    """What divides the work: "tensor=2" divides the model's layers over two ranks, "data=2" each batch."""
    kind, _, count = layout.partition("=")
    if kind not in (*_SHARDS, *_DIVIDED) or not count.isdigit():
        fail(f"--layout {layout} is not understood: give data=N, zero1=N, shard=N, tensor=N or pipeline=N.")
    if int(count) != ranks:
        fail(f"--layout {layout} is for {count} ranks, and there are {ranks}: all of them divide the same.")
    if kind in _DIVIDED:
        return _DIVIDED[kind], {}
    return "data_parallel", {"ranks": ranks, "shards": _SHARDS[kind]}
