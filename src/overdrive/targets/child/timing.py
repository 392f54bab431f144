"""How long a call takes, by the artefact through its runner and by the program's own model, in turns."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overdrive.machine.energy import EnergyMeter
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.runner import Answer
from overdrive.targets.child.subject import Model, Names
from overdrive.targets.order import TIMES

_MOST_SHAPES = 3
_SECONDS = 4.0  # for each shape
_BLOCK_SECONDS = 0.05
_FEWEST_BLOCKS, _MOST_CALLS = 8, 600  # of each side
_WARM_UP = 3
_COUNTED_SECONDS = 1.0  # of calls, while energy is counted: RAPL's counters are brought up to date each millisecond


def write_times(model: Model, names: Names, answer: Answer, calls: list[tuple[Arrays, int]], folder: Path) -> None:
    """Seconds of single calls, in blocks, for the shapes that the program sends most. Each block's first is left out.

    Args:
        calls: one of each shape, and how often the program sent such.
    """
    found = []
    for given, count in sorted(calls, key=lambda each: -each[1])[:_MOST_SHAPES]:
        arrays = dict(zip(names.inputs, given, strict=True))
        sides: dict[str, Callable[[], Any]] = {
            "artefact": lambda arrays=arrays: answer(arrays),  # type: ignore[misc]
            "eager": model.own_call(given),
        }
        shapes = {name: list(each.shape) for name, each in arrays.items()}
        found.append({"shapes": shapes, "calls": count, "seconds": _in_turns(sides)})
    (folder / TIMES).write_text(json.dumps(found))


def write_own_times(model: Model, calls: Arrays, folder: Path) -> None:
    """Seconds of the model's own calls: with one row, and with the largest batch of these; and the joules of one, where
    the processor counts them."""
    largest = max(calls, key=len)
    found = []
    with EnergyMeter(with_gpus=False) as meter:
        for count in sorted({1, len(largest)}):
            own = model.own_call([largest[:count]])
            seconds = _in_turns({"own": own})["own"]
            found.append({"rows": count, "seconds": seconds, "joules": joules_of(own, meter)})
    (folder / TIMES).write_text(json.dumps(found))


def joules_of(call: Callable[[], Any], meter: EnergyMeter) -> float | None:
    """Of one call, by the processor's counters, with all else that runs meanwhile; None where it has none."""
    if not meter.parts:
        return None
    before, until, calls = meter.read(), time.monotonic() + _COUNTED_SECONDS, 0
    while time.monotonic() < until:
        call()
        calls += 1
    used = meter.between(before, meter.read())
    return used / calls if used is not None and calls else None


def _in_turns(sides: dict[str, Callable[[], Any]]) -> dict[str, list[list[float]]]:
    """Seconds of each call, by side, in blocks of calls made one after the other, the sides in random turns."""
    blocks: dict[str, list[list[float]]] = {name: [] for name in sides}
    longest = 0.0
    for call in sides.values():
        for _ in range(_WARM_UP):
            began = time.perf_counter()
            call()
            last = time.perf_counter() - began
        longest = max(longest, last)
    size = max(2, min(50, round(_BLOCK_SECONDS / max(longest, 1e-6))))
    rng, until = random.Random(0), time.monotonic() + _SECONDS
    count = 0
    while count < _FEWEST_BLOCKS or (time.monotonic() < until and size * count < _MOST_CALLS):
        count += 1
        for name in rng.sample(list(sides), len(sides)):
            sides[name]()
            block = []
            for _ in range(size):
                began = time.perf_counter()
                sides[name]()
                block.append(time.perf_counter() - began)
            blocks[name].append(block)
    return blocks
