"""Edits of the program that are worth making: each rests on what was seen at run time, with file and line."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overdrive.core.bounds import text
from overdrive.core.facts import Facts
from overdrive.core.units import duration, unit_of

_LEAST_SHARE = 0.01  # of a step; what costs less is not worth an edit
_LEAST_BYTES = 1 << 20
_ITEM_CALLS = 4  # functions on tensors a batch, on one line, from which batching them is worth a thought
# By what PyTorch was asked to do: kind, what was seen, the edit.
_CHECKS = {
    "anomaly": (
        "checks every gradient",
        "Anomaly detection is on: each operator keeps where it was called, and each gradient is searched for NaN.",
        "Take `torch.autograd.set_detect_anomaly(True)`, or `detect_anomaly()`, away unless you look for a NaN.",
    ),
    "deterministic": (
        "asks for deterministic algorithms",
        "Where there is a slower kernel that always adds alike, it is taken, and new memory is filled before its use.",
        "Take `torch.use_deterministic_algorithms(True)` away, unless runs must repeat bit for bit.",
    ),
}
_WAITS = "each waits until the GPU has done all that was ordered"
_TENSOR_CORES = ("torch.float16", "torch.bfloat16")
_BATCH_IT = "Do this to the batch instead of to each item: in collate_fn, or in the loop after the batch is there."
_INDEX_IT = (
    "The loader takes a library's data set item by item: tensors that are in memory can be indexed by the batch."
)
_KEEP_A_LOSS = "Keep it as a tensor (`total += loss.detach()`) and read it once an epoch or every hundred steps."
_KEEP_AN_ANSWER = "Keep it as a tensor, and read those of many calls at once."
_KEEP_A_SHAPE = "How much comes out depends on the numbers. Keep the shape where you can: `torch.where`, times a mask."
# Calls whose result has another shape by what the tensor holds, and those that answer yes or no.
_SHAPED = ("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "where", "__getitem__")
_ANSWERED = ("equal", "allclose", "is_nonzero", "__bool__")


@dataclass(frozen=True)
class Edit:
    """`seconds`: of a step that were seen to go there, 0 where it is no matter of time; `bytes` of memory likewise."""

    kind: str = text(80)
    file: str = ""
    line: int = 0
    source: str = text(200)  # the line as it stands
    seen: str = text(600)
    edit: str = text(600)
    seconds: float = 0.0
    bytes: int = 0


def edits(lines: Mapping[str, Any], step: float, facts: Facts | None) -> list[Edit]:
    """The costliest first. `step`: seconds of a plain step."""
    steps = max(1, int(lines.get("steps", 1)))
    unit = unit_of(facts is not None and facts.inference)
    found = [
        *_reads(lines.get("reads", ()), steps, step, unit),
        *_items(lines.get("in_items", ()), steps, step, unit, _BATCH_IT),
        *_items(lines.get("in_library_items", ()), steps, step, unit, _INDEX_IT),
        *_zeroing(lines.get("late_zeroing", ())),
        *_evaluations(lines.get("evaluations", ())),
        *_checks(lines.get("checks", ())),
        *_doubles(lines.get("doubles", ()), steps, facts),
        *_norms(lines.get("norms", ())),
        *_widths(lines.get("widths", ())),
    ]
    return sorted(found, key=lambda each: (-each.seconds, -each.bytes, each.file, each.line))


def _edit(kind: str, place: Mapping[str, Any], seen: str, edit: str, seconds: float = 0.0, size: int = 0) -> Edit:
    file, line = str(place["file"]), int(place["line"])
    source = linecache.getline(file, line).strip()
    return Edit(kind, os.path.relpath(file), line, source, seen, edit, seconds, size)


def _reads(reads: Sequence[Mapping[str, Any]], steps: int, step: float, unit: str) -> list[Edit]:
    found = []
    keep = _KEEP_A_LOSS if unit == "step" else _KEEP_AN_ANSWER
    for each in reads:
        seconds = each["seconds"] / steps
        if not each["line"] or not (seconds >= _LEAST_SHARE * step or each["on_gpu"]):
            continue
        calls = each["calls"] / steps
        waits = _WAITS if each["on_gpu"] else "each gives numbers to Python"
        seen = f"`{each['call']}` {calls:.3g} times a {unit}, {duration(seconds)} of it: {waits}."
        edit = _KEEP_A_SHAPE if each["call"] in _SHAPED else _KEEP_AN_ANSWER if each["call"] in _ANSWERED else keep
        found.append(_edit("reads a tensor back", each, seen, edit, seconds))
    return found


def _items(items: Sequence[Mapping[str, Any]], steps: int, step: float, unit: str, edit: str) -> list[Edit]:
    found = []
    for each in items:
        calls, seconds = each["calls"] / steps, each["amount"] / steps
        if each["line"] and calls >= _ITEM_CALLS and seconds >= _LEAST_SHARE * step:
            seen = f"{calls:.0f} calls of PyTorch functions a {unit} while a batch is made, "
            seen += f"{duration(seconds)} together."
            found.append(_edit("works on single items", each, seen, edit, seconds))
    return found


def _zeroing(lines: Sequence[Mapping[str, Any]]) -> list[Edit]:
    found = []
    for each in lines:
        size = int(each["amount"] / each["calls"])
        if size >= _LEAST_BYTES:
            seen = f"The last step's gradients ({size / 1e6:,.1f} MB) stay in memory while the model runs forward."
            edit = "Call zero_grad() before the model, or straight after the optimizer's step."
            found.append(_edit("zeroes gradients late", each, seen, edit, size=size))
    return found


def _checks(lines: Sequence[Mapping[str, Any]]) -> list[Edit]:
    return [
        _edit(_CHECKS[each["check"]][0], each, *_CHECKS[each["check"]][1:])
        for each in lines
        if each["line"] and each["check"] in _CHECKS
    ]


def _evaluations(lines: Sequence[Mapping[str, Any]]) -> list[Edit]:
    found = []
    for each in lines:
        seconds = each["amount"] / each["calls"]
        seen = f"A model in evaluation mode was called {each['calls']:.0f} times with gradients recorded, never used; "
        seen += f"{duration(seconds)} a call."
        edit = "Put the evaluation into `with torch.no_grad():` (or `torch.inference_mode()`): less memory, less time."
        found.append(_edit("evaluates with gradients on", each, seen, edit))
    return found


def _doubles(lines: Sequence[Mapping[str, Any]], steps: int, facts: Facts | None) -> list[Edit]:
    if facts is not None and "torch.float64" in facts.parameter_dtypes:
        return []  # the whole program is in fp64, and means to be
    found = []
    unit = unit_of(facts is not None and facts.inference)
    for each in lines:
        if each["line"]:
            times = f"{each['calls'] / steps:.3g} times a {unit}"
            seen = f"`{each['call']}` gives 64-bit numbers here, {times}; the model's have fewer bits."
            edit = "Make them 32-bit where they arise: `array.astype(numpy.float32)`, or dtype=torch.float32."
            found.append(_edit("64-bit numbers", each, seen, edit))
    return found


def _norms(lines: Sequence[Mapping[str, Any]]) -> list[Edit]:
    by_line: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for each in lines:
        if each["line"]:
            by_line.setdefault((each["file"], each["line"]), []).append(each)
    found = []
    for group in by_line.values():
        layers, norms = (", ".join(dict.fromkeys(each[name] for each in group)) for name in ("layer", "norm"))
        if len(group) == 1:
            seen = f"{layers} adds a bias, and its result goes into {norms}."
            whom, what = "the layer", "its result goes"
        else:
            seen = f"{layers} add a bias, and their results go into {norms}."
            whom, what = "these layers", "their results go"
        edit = f"Give {whom} bias=False, if {what} nowhere else: the normalisation takes any constant away again."
        found.append(_edit("bias before a batch norm", group[0], seen, edit))
    return found


def _widths(lines: Sequence[Mapping[str, Any]]) -> list[Edit]:
    found = []
    for each in lines:
        if each["line"] and each["dtype"] in _TENSOR_CORES:
            kind = each["dtype"].removeprefix("torch.")
            seen = f"{each['layer']} ({each['sizes']}) on a GPU in {kind}: not multiples of 8."
            edit = "Round the width up to a multiple of 8, better 64: tensor cores work in such pieces."
            found.append(_edit("width that tensor cores pad", each, seen, edit))
    return found
