"""What the design came to: the parent's side, from the files that the trial left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.core.interval import Interval
from overdrive.core.json_data import from_json
from overdrive.evidence.binomial import at_most, samples_needed
from overdrive.evidence.latency import percentiles
from overdrive.evidence.replayed import rms
from overdrive.targets.order import ANSWERS, DESIGN, TIMES

MARGIN = 0.01  # of inputs, whose class may be another one: fixed before anything is looked at
_FEWEST_INPUTS = 16  # of a model whose answers are no classes


@dataclass(frozen=True)
class Cycles:
    """The design in Verilog, as it was simulated, the same as the emulation in every bit of every answer.

    Attributes:
        inputs: one at each clock cycle; `latency`: cycles from the one that takes an input to the one that has its
            answer; `interval`: cycles from one input to the next.
        clock: in Hz: assumed, and shown by no tool.
        luts, registers: look-up tables of six inputs, and bits of registers: da4ml's own count, which states no error.
    """

    inputs: int
    latency: int
    interval: int
    clock: float
    luts: int
    registers: int
    verilator: str

    @property
    def seconds(self) -> float:
        return self.latency / self.clock

    @property
    def rate(self) -> float:
        """Inputs in a second."""
        return self.clock / self.interval


@dataclass(frozen=True)
class OwnTimes:
    """Of the program's own calls, with so many rows, where the export ran. In seconds, and joules of a call: of the
    processor's packages, with all that ran on them; None where they have no counters that may be read."""

    rows: int
    calls: int
    p50: Interval | None
    p99: Interval | None
    joules: float | None = None


@dataclass(frozen=True)
class Designed:
    """A design by hls4ml, and how its bit-accurate emulation answers.

    Attributes:
        inputs: recorded ones, all of which were emulated; `tested` of them took no part in the search for precision.
        differ: of the tested, those with another class; `bound`: the share of such in the long run, at 95 % confidence.
        error: of the answers, as a share of their size (root mean squares).
        classes: how many; 0 of answers that are none, or not known to be any: these are held to their values.
        same_class: over all inputs, where there are classes.
        layers: with the types of their results and weights, and how many weights are not 0.
        cycles: of the Verilog; None where there is none, and `left_out` says why.
        own: how long the program's own calls take.
    """

    folder: str
    target: str
    model: str
    backend: str
    classes: int
    margin: float
    inputs: int
    tested: int
    differ: int
    bound: float
    error: float
    same_class: float
    sentence: str
    layers: Sequence[Mapping[str, Any]]
    cycles: Cycles | None
    left_out: str
    own: Sequence[OwnTimes]
    versions: Mapping[str, str]
    notes: Sequence[str]


def verdict(folder: Path, place: Path, model: str, notes: Sequence[str], versions: Mapping[str, str]) -> Designed | str:
    """The design; or, in words, why it is not one that answers as the program does."""
    told = json.loads((folder / DESIGN).read_text())
    with np.load(folder / ANSWERS, allow_pickle=False) as kept:
        tested, *answers = (kept[name] for name in ("tested", "own", "emulated"))
    own, emulated = (each.astype(np.float64) for each in answers)
    for whose, found in (("the program", own), ("the emulation", emulated)):
        if not np.isfinite(found).all():
            return f"{whose} gives numbers that are not finite"
    off, size = rms(emulated[tested], own[tested]), rms(own[tested])
    if off is None or size is None:
        return "its answers are too large to be compared"
    error = off / max(size, 1e-300)
    same = float((own.argmax(1) == emulated.argmax(1)).mean())
    count = int(tested.sum())
    differ, bound, margin = 0, 0.0, told["margin"]
    if told["classes"]:
        differ = int((own[tested].argmax(1) != emulated[tested].argmax(1)).sum())
        bound = at_most(differ, count)
        apart = f"{differ} of {count:,} inputs that took no part in the search have another class"
        if bound > margin:
            few = f"; a margin of {margin:.0%} takes {samples_needed(margin):,} of them and more" if not differ else ""
            return f"{apart}, so that up to {bound:.1%} may{few}"
        sentence = f"{apart}: in the long run at most {bound:.2%} may, within the margin of {margin:.0%}"
    else:
        if count < _FEWEST_INPUTS:
            return f"only {count} inputs were recorded for the test, and it takes {_FEWEST_INPUTS}"
        if error > told["error"]:
            return f"its answers are {error:.2%} of their size off, and {told['error']:.0%} is allowed"
        sentence = f"its answers are {error:.2%} of their size off in {count:,} inputs that took no part in the search"
    return Designed(
        folder=str(place),
        target="fpga",
        model=model,
        backend=told["backend"],
        classes=told["classes"],
        margin=margin,
        inputs=len(own),
        tested=count,
        differ=differ,
        bound=bound,
        error=error,
        same_class=same,
        sentence=sentence,
        layers=told["layers"],
        cycles=from_json(Cycles, told["rtl"]) if "left_out" not in told["rtl"] else None,
        left_out=told["rtl"].get("left_out", ""),
        own=tuple(_own_times(**each) for each in json.loads((folder / TIMES).read_text())),
        versions=versions,
        notes=tuple(notes),
    )


def _own_times(rows: int, seconds: Sequence[Sequence[float]], joules: float | None = None) -> OwnTimes:
    return OwnTimes(rows, sum(map(len, seconds)), *percentiles([(0, block) for block in seconds]), joules)
