"""`overdrive doctor --pool`: what goes between ranks, measured, and what is set up wrong for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overdrive.cli.json_output import STDOUT, console_beside, write_json
from overdrive.cli.line import fail
from overdrive.cli.started_again import membership_in
from overdrive.core.json_data import to_json
from overdrive.machine.diagnosis import PoolDiagnosis
from overdrive.machine.nvml import nvml
from overdrive.machine.pool.curve import fit, points_of
from overdrive.machine.pool.link import link
from overdrive.machine.pool.start import PoolUnavailable, measure_as, measure_here
from overdrive.machine.rules.apply import apply_rules
from overdrive.machine.rules.pool import RULES
from overdrive.ranks.membership import Membership, launched_by
from overdrive.report.pool import shown
from overdrive.version import __version__

_FEW = 2  # ranks, where there are no GPUs


def pool(ranks: int | None, quick: bool, json_path: Path | None) -> int:
    """Measure, advise, and print: on rank 0 where a launcher has started this command once for each rank.

    Returns:
        The exit code: 1 where something is wrong, or could not be measured.
    """
    membership = membership_in(None)
    if membership and ranks:
        fail(f"This is rank {membership.rank} of {membership.size} already, started by a launcher: leave out --ranks.")
    try:
        found = measure_as(_as_launched(membership), quick) if membership else measure_here(ranks or _count(), quick)
    except PoolUnavailable as error:
        fail(str(error), 1)
    if found is None:
        return 0  # another rank tells
    result = examine(found)
    write_json(json_path, to_json(result))
    if json_path != STDOUT:
        shown(result, console_beside(json_path))
    return result.exit_code


def examine(found: Mapping[str, Any]) -> PoolDiagnosis:
    """What doctor makes of a measurement: all that it prints."""
    ranks = found["ranks"]
    seconds = {name: {int(size): float(took) for size, took in times} for name, times in found["seconds"].items()}
    measured = [point for name, times in seconds.items() for point in points_of(name, len(ranks), times)]
    best = max(point.bus_bytes_per_second for point in measured if point.operation == "all_reduce")
    told = {
        "ranks": ranks,
        "backend": found["backend"],
        "pairs": found["pairs"],
        "link": link(ranks, found["backend"], best),
    }
    findings, failed = apply_rules(told, RULES)
    return PoolDiagnosis(
        overdrive=__version__,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        findings=tuple(findings),
        left_out=tuple(failed),
        backend=found["backend"],
        ranks=tuple(ranks),
        pairs=tuple(found["pairs"]),
        link=told["link"],
        measured=tuple(measured),
        fits={name: fit(times) for name, times in seconds.items()},
        busy=found["busy"],
        memory=found.get("memory"),
    )


def _count(ask: Callable[[], dict[str, Any]] = nvml) -> int:
    """A rank for each GPU of this machine, or a few processes."""
    gpus = len(ask().get("gpus", []))
    return gpus if gpus > 1 else _FEW


def _as_launched(rank: Membership) -> dict[str, str]:
    """Its variables as torchrun tells them: of a Slurm step too."""
    return launched_by(rank.rank, rank.size, rank.local_rank, rank.address, rank.port)
