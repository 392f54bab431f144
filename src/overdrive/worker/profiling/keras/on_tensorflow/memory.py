"""What fills the memory over the steps of a Keras program, as far as TensorFlow tells.

Its allocators record what they give and take back, and for which operator: on a CPU only oneDNN's does, and only what
is large. Parameters and optimizer state are counted as they stand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from overdrive.machine.memory import peak_resident
from overdrive.seams.keras.control import peak_memory
from overdrive.worker.profiling.keras.events import TraceEvent
from overdrive.worker.profiling.keras.moments import OperatorRun
from overdrive.worker.profiling.keras.on_tensorflow.graphs import Graphs
from overdrive.worker.profiling.memory import CATEGORIES, over_the_step

_GIVEN, _TAKEN = "MemoryAllocation", "MemoryDeallocation"


def memory_of(
    there: dict[str, int],
    events: Sequence[TraceEvent],
    runs: Sequence[OperatorRun],
    graphs: Graphs,
    window: tuple[int, int],
) -> dict[str, Any]:
    """As `worker.profiling.memory` has it; without a curve where no allocator told anything."""
    given = [each for each in events if each.name in (_GIVEN, _TAKEN) and window[0] <= each.start <= window[1]]
    on_gpu = peak_memory()
    most = ("of the GPU at its peak", on_gpu) if on_gpu else ("the whole process at its peak", peak_resident())
    told: dict[str, Any] = {"standing": there, "most": {"name": most[0], "bytes": most[1]}}
    if not any(each.name == _GIVEN for each in given):
        return told
    starts = {
        part: sorted(run.span.start for run in runs if run.span.part == part) for part in ("backward", "optimizer")
    }
    return {**told, **over_the_step(_changes(given, starts, graphs), {**dict.fromkeys(CATEGORIES, 0), **there}, window)}


def _changes(
    events: Sequence[TraceEvent], starts: dict[str, list[int]], graphs: Graphs
) -> dict[str, list[tuple[int, int]]]:
    """By category. Made in forward and there when backward begins: an activation; made in backward and there when the
    optimizer begins: a gradient; made outside of the graph: a batch; all else is temporary."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in CATEGORIES}
    living: dict[int, tuple[int, int, str]] = {}

    def add(made: int, size: int, part: str, freed: int | None) -> None:
        later = {"forward": ("backward", "activations"), "backward": ("optimizer", "gradients")}.get(part)
        category = "temporary" if part else "batches"
        if later:
            place = bisect_right(starts[later[0]], made)
            begins = starts[later[0]][place] if place < len(starts[later[0]]) else None
            if freed is None or (begins is not None and freed > begins):
                category = later[1]
        found[category].append((made, size))
        if freed is not None:
            found[category].append((freed, -size))

    for each in sorted(events, key=lambda one: one.start):
        address, size = int(each.details.get("addr", 0)), int(each.details.get("allocation_bytes", 0))
        if each.name == _GIVEN:
            living[address] = (each.start, size, graphs.part(str(each.details.get("tf_op", ""))))
        elif address in living:
            add(*living.pop(address), each.start)
    for made, size, part in living.values():
        add(made, size, part, None)
    return found
