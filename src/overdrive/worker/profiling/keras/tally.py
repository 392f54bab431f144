"""Moments of a recording as the profile's plain data: seconds, calls, operations and bytes of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overdrive.worker.profiling.keras.moments import GAP, Moments, OperatorRun

_MOST_CELLS = 2000


@dataclass(frozen=True)
class Count:
    """`known`: False for a product of matrices that no formula was found for."""

    flops: float = 0.0
    bytes: float = 0.0
    format: str = ""
    known: bool = True


def phases_of(found: Moments, steps: int) -> dict[str, dict[str, float]]:
    return {name: {what: s / steps for what, s in each.items()} for name, each in found.phases.items()}


def cells_of(
    found: Moments, runs: Sequence[OperatorRun], steps: int, shapes: Callable[[OperatorRun], str]
) -> list[dict[str, Any]]:
    last = dict(zip(found.keys, runs, strict=True))  # not of a phase into which an operator ran on: none began there
    cells = []
    for key, cell in sorted(found.cells.items(), key=lambda each: -each[1].seconds)[:_MOST_CELLS]:
        phase, layer, operator = key
        if operator == GAP:
            continue
        cells.append(
            {
                "phase": phase,
                "module": layer,
                "operator": operator,
                "calls": cell.calls / steps,
                "seconds": cell.seconds / steps,
                "device_seconds": 0.0,
                "kernel": operator,
                "shapes": shapes(last[key]) if key in last else "",
            }
        )
    return cells


def counts_of(
    found: Moments, runs: Sequence[OperatorRun], steps: int, count: Callable[[OperatorRun], Count]
) -> dict[str, Any]:
    cells: dict[tuple[str, str, str], list[float]] = {}
    kinds: dict[str, float] = {}
    unknown: set[str] = set()
    for run, key in zip(runs, found.keys, strict=True):
        if key not in found.cells:
            continue
        one = count(run)
        if not one.known:
            unknown.add(run.span.operator)
        cell = cells.setdefault(key, [0.0, 0.0, 0.0])
        for place, amount in enumerate((1.0, one.flops, one.bytes)):
            cell[place] += amount / steps
        if one.format:
            kinds[one.format] = kinds.get(one.format, 0.0) + one.flops / steps
    names = ("phase", "module", "operator", "calls", "flops", "bytes")
    return {
        "kinds": kinds,
        "unknown": sorted(unknown),
        "cells": [dict(zip(names, (*key, *cell), strict=True)) for key, cell in cells.items()],
    }
