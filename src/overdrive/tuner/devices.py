"""The same script on the CPU and on the GPU, as the duel of the technique `device` measured it."""

from __future__ import annotations

from typing import Any

from overdrive.trials.duel import Duel, Side
from overdrive.tuner.findings import Findings

TECHNIQUE = "device"


def devices_of(found: Findings) -> list[dict[str, Any]]:
    """A row for each device, the CPU first; none where they were not measured against each other."""
    tried = [(each.name, each.duel) for each in found.adopted]
    tried += [(each.name, each.duel) for each in (*found.dropped, *found.rejected) if each.duel]
    duel = next((duel for name, duel in tried if name == TECHNIQUE), None)
    if duel is None or not duel.old_side.steps or not duel.new_side.steps:
        return []
    return [_row("CPU", duel.old_side, duel), _row("GPU", duel.new_side, duel)]


def _row(name: str, side: Side, duel: Duel) -> dict[str, Any]:
    facts = duel.old_facts or duel.new_facts
    samples = side.samples or (facts.samples_per_step * side.steps if facts else 0.0)
    return {
        "device": name,
        "samples_per_s": samples / side.seconds if samples and side.seconds else None,
        "seconds_per_step": side.seconds_per_step,
        "setup_seconds": side.setup_seconds,
        "peak_memory": side.peak_memory or None,
    }
