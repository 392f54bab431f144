"""The parts of a step, which add up to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overdrive.core.facts import Facts, LoaderFacts

# In the order in which they are shown. "operators" are those that no other part has: the loss, metrics, batches made
# by hand. "python" is what the program's thread does between operators, and the launching of work.
PARTS = (
    "data",
    "copy",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "graph",
    "operators",
    "synchronisation",
    "python",
    "watching",
)
WHOLE = (
    "data",
    "copy",
    "synchronisation",
    "watching",
)  # phases that are not split into operators and what lies between
_PART_OF = {"reads": "synchronisation", "gap": "python"}
_ITEM_PARTS = ("read", "decode", "transform", "collate")


def parts(phases: Mapping[str, float], recorded: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Seconds a step by part, from those by phase (see `worker.profiling.timeline`) and the recording of operators.

    Only shares are taken from the recording: what of a phase was spent in operators. It is slowed itself, and by as
    much within operators as between them, it is taken.
    """
    found = dict.fromkeys(PARTS, 0.0)
    for phase, seconds in phases.items():
        if phase in WHOLE:
            found[phase] += seconds
        elif phase == "between":
            _split_between(found, seconds, recorded, backward_unseen=not phases.get("backward"))
        else:
            for what, share in inside(recorded.get(phase, {})).items():
                found[phase if what == "operators" else _PART_OF.get(what, what)] += seconds * share
    return found


def inside(recorded: Mapping[str, float]) -> dict[str, float]:
    """Shares of a phase: "operators" of its own, "reads", the "gap" between, or other parts of the step, which a graph
    has in it. All operators where it was not recorded."""
    whole = sum(recorded.values())
    if not whole:
        return {"operators": 1.0}
    return {what: seconds / whole for what, seconds in recorded.items()}


def _split_between(
    found: dict[str, float], seconds: float, recorded: Mapping[str, Mapping[str, float]], backward_unseen: bool
) -> None:
    """What no seam sees. `torch.autograd.grad` passes none, but its operators were recorded."""
    there = recorded.get("between", {})
    weights = {
        "operators": there.get("operators", 0.0),
        "synchronisation": there.get("reads", 0.0),
        "python": there.get("gap", 0.0),
    }
    if backward_unseen:
        weights["backward"] = recorded.get("backward", {}).get("operators", 0.0)
    whole = sum(weights.values())
    if not whole:
        found["python"] += seconds
        return
    for part, weight in weights.items():
        found[part] += seconds * weight / whole


def data_parts(seconds: float, facts: Facts | None) -> dict[str, float]:
    """Waiting for data by what an item's making consists of; empty where that is not known.

    Without workers what is left over is the loader's own; with workers, who make items ahead, the wait is shared out
    as the making is.
    """
    loader = _examined(facts)
    if loader is None or seconds <= 0:
        return {}
    made = {part: loader.seconds_per_item.get(part, 0.0) for part in _ITEM_PARTS}
    whole = sum(made.values())
    if not loader.workers:
        whole = max(whole, loader.seconds_per_item.get("wait", 0.0))
    if whole <= 0:
        return {}
    found = {part: seconds * each / whole for part, each in made.items()}
    rest = seconds - sum(found.values())
    return {**found, "loader": rest} if rest > 1e-9 else found


def _examined(facts: Facts | None) -> LoaderFacts | None:
    loaders = [each for each in facts.loaders if "decode" in each.seconds_per_item] if facts else []
    return max(loaders, key=lambda each: (each.length or 0, each.seconds_per_batch), default=None)


def on_gpu(exposed: Mapping[str, float], step: float) -> dict[str, float]:
    """The parts by what the GPU does, and the thread where the GPU waits; scaled to the step that is not recorded."""
    whole = sum(exposed.values())
    found = dict.fromkeys(PARTS, 0.0)
    for phase, seconds in exposed.items():
        part = "operators" if phase == "between" else phase
        found[part if part in found else "operators"] += seconds * step / whole if whole else 0.0
    return found


def phases_of(parts: Mapping[str, float]) -> dict[str, float]:
    """Phases from parts that were not made of phases: operators and Python together are "between"."""
    found = {part: seconds for part, seconds in parts.items() if part not in ("operators", "python")}
    return {**found, "between": parts["operators"] + parts["python"]}


def shares(phases: Mapping[str, float]) -> dict[str, float]:
    """Shares of the parts, as `Facts.shares` has them."""
    whole = sum(phases.values()) or 1.0
    found = {part: phases.get(part, 0.0) / whole for part in ("data", "forward", "backward", "optimizer")}
    return {**found, "other": max(0.0, 1.0 - sum(found.values()))}


def python_by_phase(phases: Mapping[str, float], recorded: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of Python and launching within each phase that is split, and "between" them."""
    outside = dict.fromkeys(PARTS, 0.0)
    _split_between(outside, phases.get("between", 0.0), recorded, backward_unseen=not phases.get("backward"))
    within = {
        phase: seconds * inside(recorded.get(phase, {})).get("gap", 0.0)
        for phase, seconds in phases.items()
        if phase not in (*WHOLE, "between") and seconds
    }
    return {**within, "between": outside["python"]} if outside["python"] else within
