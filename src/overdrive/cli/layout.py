"""What `overdrive run --layout` names."""

from __future__ import annotations

from overdrive.cli.line import fail

_LAYOUTS = {"data": "data_parallel", "tensor": "tensor_parallel"}


def technique_of(layout: str, ranks: int) -> str:
    """What divides the work: "tensor=2" divides the model's layers over two ranks, "data=2" each batch."""
    kind, _, count = layout.partition("=")
    if kind not in _LAYOUTS or not count.isdigit():
        fail(f"--layout {layout} is not understood: give data=N or tensor=N.")
    if int(count) != ranks:
        fail(f"--layout {layout} is for {count} ranks, and there are {ranks}: all of them divide the same.")
    return _LAYOUTS[kind]
