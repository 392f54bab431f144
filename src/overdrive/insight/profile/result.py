"""Makes a profile of what was measured."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from overdrive.core.json_data import from_json
from overdrive.core.program import Program
from overdrive.core.tune_result import MachineSummary
from overdrive.core.units import unit_of
from overdrive.insight.profile import split
from overdrive.insight.profile.bottleneck import bottleneck
from overdrive.insight.profile.edits import edits
from overdrive.insight.profile.measured import Measured
from overdrive.insight.profile.operators import Roof, by_module, by_operator, cells
from overdrive.insight.profile.record import FlameNode, MemoryProfile, Overhead, Profile, ProfiledMachine, Read
from overdrive.machine.inventory import summary, versions

_MOST_ROWS = 60


def profile_of(program: Program, found: Measured, roof: Roof | None, roof_missing: str, advise: bool) -> Profile:
    details = found.details
    recorded = details.get("operators", {})
    facts = found.facts
    device = facts.device if facts else "cpu"
    exposed = recorded.get("exposed")
    parts = split.on_gpu(exposed, found.step) if exposed else split.parts(found.phases, recorded.get("phases", {}))
    by_phase = not exposed and not found.phases.get("graph")  # by the phases themselves
    phases = found.phases if by_phase else split.phases_of(parts)
    data = split.data_parts(parts["data"], facts)
    within = {} if exposed else split.python_by_phase(found.phases, recorded.get("phases", {}))
    every = cells(details, device)
    whole = sum(parts.values())
    lines, left_out = details.get("lines", {}), {**found.not_recorded, **details.get("left_out", {})}
    return Profile(
        program=program.command(),
        date=datetime.date.today().isoformat(),
        device=device,
        step_seconds=found.step,
        steps=found.steps,
        parts=parts,
        parts_sum=whole,
        parts_off=whole / found.step - 1 if found.step else 0.0,
        data=data,
        phases=dict(phases),
        python_by_phase=within,
        gpu_idle_seconds=_scaled(recorded.get("idle"), recorded, found.step),
        bottleneck=bottleneck(
            phases, parts["python"], facts, data, within, {cell["operator"] for cell in every}, found.inference
        ),
        operators=tuple(by_operator(every, roof)[:_MOST_ROWS]),
        modules=tuple(by_module(every, roof)[:_MOST_ROWS]),
        operator_seconds=sum(cell["seconds"] for cell in every),
        uncounted=tuple(details.get("counts", {}).get("unknown", ())),
        roof=roof,
        roof_missing=roof_missing,
        reads=_reads(lines),
        memory=from_json(MemoryProfile, details.get("memory", {})),
        flame=from_json(FlameNode, {**recorded.get("flame", {}), "name": unit_of(found.inference)}),
        overhead=_overhead(found),
        left_out=left_out,
        loaders_not_split=tuple(sorted({each.not_split for each in facts.loaders if each.not_split})) if facts else (),
        workers=max((each.workers for each in facts.loaders), default=0) if facts else 0,
        advice=tuple(edits(lines, found.step, facts)) if advise and "lines" in details else None,
        machine=_machine(facts.threads if facts else None),
        versions=versions(),
        inference=found.inference,
    )


def _machine(threads: int | None) -> ProfiledMachine:
    here = summary()
    return ProfiledMachine(**{each.name: getattr(here, each.name) for each in fields(MachineSummary)}, threads=threads)


def _overhead(found: Measured) -> Overhead:
    return Overhead(
        timed=found.timed / found.step - 1 if found.step else 0.0,
        error=found.error,
        recorded={what: wall / found.step - 1 for what, wall in found.walls.items() if found.step},
        steps=dict(found.recorded),
        pairs=found.pairs,
        dropped=found.dropped,
        processes=found.processes,
    )


def _scaled(seconds: float | None, recorded: Mapping[str, Any], step: float) -> float | None:
    """Scale times from a recorded step to a plain one."""
    whole = recorded.get("seconds")
    return None if seconds is None or not whole else seconds / whole * step


def _reads(lines: Mapping[str, Any]) -> tuple[Read, ...]:
    """Every place where the program asks for a tensor's numbers, a step."""
    steps = max(1, int(lines.get("steps", 1)))
    found = [
        Read(
            each["file"],
            each["line"],
            each["call"],
            each["calls"] / steps,
            each["seconds"] / steps,
            bool(each["on_gpu"]),
        )
        for each in lines.get("reads", ())
    ]
    return tuple(sorted(found, key=lambda each: -each.seconds))
