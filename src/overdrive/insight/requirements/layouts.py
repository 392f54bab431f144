"""What each rank would have to hold under each layout of a run on several, from what one process needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from overdrive.core.requirements_result import RankLayout
from overdrive.core.runs import equal_runs
from overdrive.insight.requirements.needs import Needs

_OF_LAYERS = ("gradients", "optimizer states", "workspace")  # which divide as the weights do
# A weight's gradient of one micro-batch, before it is added to those of the others; and the copy of their sum that its
# rank keeps, as it comes.
_OF_MICRO_BATCHES = 2
_Layout = tuple[str, dict[str, int], str]  # its name, what a rank has by part, and what that hangs on


def layouts(needs: Needs, ranks: int, limit: int | None = None, apart: bool = False) -> list[RankLayout]:
    """One process, and each layout over so many ranks, which have `limit` bytes each.

    Args:
        apart: each rank has a machine to itself. Ranks are foretold from all of their steps then, and so is one
            process; else from the quickest, since they are measured beside each other.
    """
    found = _layouts(needs, needs.memory, ranks)
    if needs.step:
        both = zip(found, _layouts(needs, needs.step, ranks, step=True), strict=True)
        found = [max(pair, key=lambda each: sum(each[1].values())) for pair in both]
    sizes = [sum(parts.values()) for _, parts, _ in found]
    whole, *others = [
        RankLayout(name, parts, size, None if limit is None else size <= limit, said)
        for (name, parts, said), size in zip(found, sizes, strict=True)
    ]
    seconds = needs.usual_seconds if apart else needs.step_seconds
    return [replace(whole, seconds=seconds, communication=0.0), *others]


def _layouts(needs: Needs, memory: Mapping[str, int], ranks: int, step: bool = False) -> list[_Layout]:
    """
    Args:
        memory: of one process, by part.
        step: within an optimizer's step: no unit is whole, and what it needs for a moment is of weights, not samples.
    """
    alone = dict(memory)
    of_samples = ("activations",) if step else ("activations", "workspace")
    batch = {name: -(-each // ranks) if name in of_samples else each for name, each in alone.items()}
    states = {**batch, "optimizer states": -(-alone["optimizer states"] // ranks)}
    shares = {name: -(-each // ranks) for name, each in alone.items()}
    if step:
        states["workspace"] = shares["workspace"]
    else:
        largest = max(needs.units, default=alone["parameters"])
        shares["parameters"] += largest - largest // ranks
        # Those of the same unit, before they are summed; or one that is being summed, and the next one.
        shares["gradients"] += max(largest, 2 * needs.largest)
    divided = [held for multiple, held in needs.divided if multiple % ranks == 0]
    saved = sum(divided) - sum(divided) // ranks
    share = min(1.0, saved / alone["parameters"]) if alone["parameters"] else 0.0
    layers = {name: round(each * (1 - share)) if name in _OF_LAYERS else each for name, each in alone.items()}
    layers["parameters"] = alone["parameters"] - min(saved, alone["parameters"])
    meshes = [(replicas, ranks // replicas) for replicas in range(2, ranks // 2 + 1) if ranks % replicas == 0]
    return [
        ("one process", alone, ""),
        (f"data={ranks}", batch, "the batch, and results gathered, come on top"),
        (f"zero1={ranks}", states, f"if the optimizer looks at each element alone; else as data={ranks}"),
        (
            f"shard={ranks}",
            shares,
            f"the largest of {len(needs.units)} units of parameters is whole in its use, and so are its gradients",
        ),
        (f"tensor={ranks}", layers, _said(ranks, len(divided), len(needs.divided))),
        (f"pipeline={ranks}", *_staged(needs, alone, step, ranks)),
        *((f"data={each},pipeline={stages}", *_staged(needs, alone, step, stages, each)) for each, stages in meshes),
    ]


def _staged(
    needs: Needs, memory: Mapping[str, int], step: bool, stages: int, replicas: int = 1
) -> tuple[dict[str, int], str]:
    """What the rank of the largest stage has, of one replica of them, and what it is."""
    runs = equal_runs(needs.layers, stages)
    if runs is None:
        return dict(memory), "it has fewer layers than stages"
    samples = {**memory, "activations": -(-memory["activations"] // replicas)}
    held = Counter[int]()
    for run, size in zip(runs, needs.layers, strict=True):
        held[run] += size
    share = max(held.values()) / sum(held.values())
    said = "the largest stage, were its activations as its weights; results come on top"
    # A stage has whole layers: what one of them needs for a while, in its backward pass or its step, is what it was.
    parts = {name: each if name == "workspace" else round(each * share) for name, each in samples.items()}
    if not step:
        parts["workspace"] += _OF_MICRO_BATCHES * needs.largest
    return parts, said


def _said(ranks: int, divided: int, found: int) -> str:
    if not divided:
        return "no layers were found that could be divided"
    tried = "" if ranks == 2 else "; it was tried with 2 ranks, and with more of them heads of attention may be too few"
    rest = f" of {found}" if divided < found else ""
    return f"{divided}{rest} weights and biases are divided; what their layers make divides too{tried}"
