"""The same script on the CPU and on the GPU, as the duel of the technique `device` measured it."""

from __future__ import annotations

from overdrive.core.tune_result import OnDevice
from overdrive.tuner.figures import figures
from overdrive.tuner.findings import Findings

TECHNIQUE = "device"


def devices_of(found: Findings) -> tuple[OnDevice, ...]:
    """A row for each device, the CPU first; none where they were not measured against each other."""
    tried = [(each.name, each.duel) for each in found.adopted]
    tried += [(each.name, each.duel) for each in (*found.dropped, *found.rejected) if each.duel]
    duel = next((duel for name, duel in tried if name == TECHNIQUE), None)
    if duel is None or not duel.pairs:
        return ()
    sides = [(name, figures(duel, name == "GPU")) for name in ("CPU", "GPU")]
    return tuple(OnDevice(**vars(each), device=name) for name, each in sides if each)
