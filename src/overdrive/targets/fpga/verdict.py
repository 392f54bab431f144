"""What the design came to: the parent's side, from the files that the trial left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.evidence.binomial import at_most, samples_needed
from overdrive.evidence.replayed import rms
from overdrive.targets.order import ANSWERS, DESIGN

MARGIN = 0.01  # of inputs, whose class may be another one: fixed before anything is looked at
_FEWEST_INPUTS = 16  # of a model whose answers are no classes


@dataclass(frozen=True)
class Designed:
    """A design by hls4ml, and how its bit-accurate emulation answers.

    Attributes:
        inputs: recorded ones, all of which were emulated; `tested` of them took no part in the search for precision.
        differ: of the tested, those with another class; `bound`: the share of such in the long run, at 95 % confidence.
        error: of the answers, as a share of their size (root mean squares).
        same_class: over all inputs.
        layers: with the types of their results and weights, and how many weights are not 0.
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
    versions: Mapping[str, str]
    notes: Sequence[str]


def verdict(folder: Path, place: Path, model: str, notes: Sequence[str], versions: Mapping[str, str]) -> Designed | str:
    """The design; or, in words, why it is not one that answers as the program does."""
    told = json.loads((folder / DESIGN).read_text())
    with np.load(folder / ANSWERS, allow_pickle=False) as kept:
        own, emulated, tested = (kept[name] for name in ("own", "emulated", "tested"))
    error = (rms(emulated[tested], own[tested]) or 0.0) / max(rms(own[tested]) or 0.0, 1e-300)
    if not np.isfinite(emulated).all():
        return "the emulation gives numbers that are not finite"
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
        versions=versions,
        notes=tuple(notes),
    )


def readme(result: Designed, command: str) -> str:
    """The page in the folder."""
    lines = [
        f"# {result.model}, for an FPGA",
        "",
        f"Made by `overdrive export --to fpga {command}`, by hls4ml {result.versions['hls4ml']} for {result.backend}.",
        "`project/` is what Vitis HLS synthesises; `project/firmware` is the C++ that was emulated.",
        "",
        "## Answers",
        "",
        f"{result.sentence[0].upper()}{result.sentence[1:]}.",
        f"Over all {result.inputs:,} recorded inputs {result.same_class:.2%} have the same class, and answers are "
        f"{result.error:.2g} of their size off.",
        "",
        "Emulated bit by bit; not synthesised, and not simulated in cycles: no latency and no resources are told.",
        "",
        "## Layers",
        "",
        "| layer | kind | result | weights | weights that are not 0 |",
        "|---|---|---|---|---|",
        *(
            f"| {each['name']} | {each['kind']} | {each['result']} | {each['weights'].get('weight', '')} | "
            f"{each['weights_not_0'] or ''} |"
            for each in result.layers
        ),
        "",
        *(f"- {each}." for each in result.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"
