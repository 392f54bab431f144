"""What `overdrive doctor --pool` found, in the terminal: curves, their fits, and what is set up wrong."""

from __future__ import annotations

from rich.console import Console

from overdrive.core.units import rate
from overdrive.machine.diagnosis import PoolDiagnosis
from overdrive.report.doctor import findings
from overdrive.report.machine import gib
from overdrive.report.paper import Paper

_TITLES = {
    "all_reduce": "All-reduce",
    "all_gather": "All-gather",
    "reduce_scatter": "Reduce-scatter",
    "broadcast": "Broadcast",
    "point_to_point": "Point to point",
}
_SHOWN = (1 << 10, 64 << 10, 4 << 20, 64 << 20, 1 << 30)  # bytes; --json has all


def shown(result: PoolDiagnosis, console: Console) -> None:
    """Print all of it."""
    paper = Paper(console)
    ranks, hosts = len(result.ranks), len({each["host"] for each in result.ranks})
    where = "this machine" if hosts == 1 else f"{hosts} hosts"
    paper.say(f"{ranks} ranks on {where}, {result.backend}. Bus bandwidth by size, as nccl-tests define it:", "dim")
    sizes = [size for size in _SHOWN if any(point.bytes == size for point in result.measured)]
    by_name = {(point.operation, point.bytes): point for point in result.measured}
    body = []
    for name, title in _TITLES.items():
        fit = result.fits[name]
        speed = fit.bytes_per_second
        body.append(
            [
                title,
                *(rate(by_name[name, size].bus_bytes_per_second, "B/s") for size in sizes),
                rate(fit.latency_seconds, "s") if fit.latency_seconds else "",
                rate(speed, "B/s") if speed else "",
            ]
        )
    paper.rows(["", *map(gib, sizes), "latency", "per byte"], body, right=True)
    if link := result.link:
        share = f"{link['share']:.0%} of {link['gigabits_per_second']:g} Gb/s ({link['what']})"
        paper.say(f"All-reduce reaches {share}; 80% is usual where nothing is wrong.")
    else:
        paper.say("No link's rate to hold it against: " + ("one host." if hosts == 1 else "none is told."), "dim")
    if result.backend == "gloo":
        paper.say("Processors over sockets (gloo): what GPUs would reach over NCCL is another thing.", "dim")
    paper.say()
    findings(result, paper)
