"""A profile as plain data: what the terminal, the page and --json show."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from overdrive.core.json_data import to_json
from overdrive.core.program import Program
from overdrive.insight.profile import split
from overdrive.insight.profile.advice import findings
from overdrive.insight.profile.bottleneck import bottleneck
from overdrive.insight.profile.measure import Measured
from overdrive.insight.profile.operators import Roof, by_module, by_operator, cells
from overdrive.machine.inventory import summary, versions

_MOST_ROWS = 60


def result_of(program: Program, found: Measured, roof: Roof | None, roof_missing: str, advise: bool) -> dict[str, Any]:
    """Times in seconds a step, sizes in bytes."""
    details = found.details
    recorded = details.get("operators", {})
    device = found.facts.device if found.facts else "cpu"
    exposed = recorded.get("exposed")
    parts = split.on_gpu(exposed, found.step) if exposed else split.parts(found.phases, recorded.get("phases", {}))
    by_phase = not exposed and not found.phases.get("graph")  # by the phases themselves
    phases = found.phases if by_phase else split.phases_of(parts)
    data = split.data_parts(parts["data"], found.facts)
    within = {} if exposed else split.python_by_phase(found.phases, recorded.get("phases", {}))
    every = cells(details, device)
    seen = {cell["operator"] for cell in every}
    named = bottleneck(phases, parts["python"], found.facts, data, within, seen)
    whole = sum(parts.values())
    return {
        "overdrive": 1,
        "program": program.command(),
        "date": datetime.date.today().isoformat(),
        "device": device,
        "step_seconds": found.step,
        "steps": found.steps,
        "parts": parts,
        "parts_sum": whole,
        "parts_off": whole / found.step - 1 if found.step else 0.0,
        "data": data,
        "phases": dict(phases),
        "python_by_phase": within,
        "gpu_idle_seconds": _scaled(recorded.get("idle"), recorded, found.step),
        "bottleneck": to_json(named),
        "operators": by_operator(every, roof)[:_MOST_ROWS],
        "modules": by_module(every, roof)[:_MOST_ROWS],
        "operator_seconds": sum(cell["seconds"] for cell in every),
        "uncounted": list(details.get("counts", {}).get("unknown", ())),
        "roof": _roof(roof),
        "roof_missing": roof_missing,
        "reads": _reads(details.get("lines", {})),
        "memory": details.get("memory", {}),
        "flame": recorded.get("flame", {}),
        "overhead": _overhead(found),
        "left_out": dict(details.get("left_out", {})),
        "loaders_not_split": sorted({each.not_split for each in found.facts.loaders if each.not_split})
        if found.facts
        else [],
        "workers": max((each.workers for each in found.facts.loaders), default=0) if found.facts else 0,
        "advice": [each.to_dict() for each in findings(details.get("lines", {}), found.step, found.facts)]
        if advise and "lines" not in details.get("left_out", {})
        else None,
        "machine": {**to_json(summary()), "threads": found.facts.threads if found.facts else None},
        "versions": versions(),
    }


def _overhead(found: Measured) -> dict[str, Any]:
    """What measuring itself cost, as shares of a step."""
    return {
        "timed": found.timed / found.step - 1 if found.step else 0.0,
        "error": found.error,
        "recorded": {what: wall / found.step - 1 for what, wall in found.walls.items() if found.step},
        "steps": dict(found.recorded),
        "pairs": found.pairs,
        "dropped": found.dropped,
        "processes": found.processes,
    }


def _scaled(seconds: float | None, recorded: Mapping[str, Any], step: float) -> float | None:
    """Scale times from a recorded step to a plain one."""
    whole = recorded.get("seconds")
    return None if seconds is None or not whole else seconds / whole * step


def _roof(roof: Roof | None) -> dict[str, Any] | None:
    if roof is None:
        return None
    return {
        "flops": roof.flops,
        "bytes": roof.bytes,
        "cache_bytes": roof.cache_bytes,
        "format": roof.format,
        "device": roof.device,
        "busy_share": roof.busy_share,
    }


def _reads(lines: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every place where the program asks for a tensor's numbers, a step."""
    steps = max(1, int(lines.get("steps", 1)))
    found = [
        {
            "file": each["file"],
            "line": each["line"],
            "call": each["call"],
            "calls": each["calls"] / steps,
            "seconds": each["seconds"] / steps,
            "on_gpu": bool(each["on_gpu"]),
        }
        for each in lines.get("reads", ())
    ]
    return sorted(found, key=lambda each: -float(each["seconds"]))
