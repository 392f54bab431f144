"""`overdrive doctor`: what this machine is and can do, and what is set up wrong on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from overdrive.cli import many_ranks, pool
from overdrive.cli.json_output import STDOUT, console_beside, json_option, write_json
from overdrive.cli.line import fail, faults_as_sentences, parse_trial_program, program_argument, program_command
from overdrive.cli.many_ranks import OnRanks, Stated
from overdrive.cli.values import LINK, Parsed, stdin_option
from overdrive.core.json_data import to_json
from overdrive.core.link import Link
from overdrive.core.objective import bytes_in
from overdrive.core.program import Program
from overdrive.core.unlike_ranks import Sizes
from overdrive.insight.requirements.counting import CannotCount
from overdrive.machine.diagnosis import Diagnosis
from overdrive.machine.limits import Limits, LimitsUnavailable, measured_limits
from overdrive.machine.pool.curve import Measured
from overdrive.machine.rules.apply import apply_rules
from overdrive.machine.rules.finding import LeftOut
from overdrive.machine.survey import survey
from overdrive.report.doctor import diagnosis
from overdrive.version import __version__

_SOFTWARE = ("software", "loaded")  # of the survey; all else but these is the machine


def doctor(quick: bool = False, json_path: Path | None = None, fresh: bool = False) -> int:
    """Look, measure, advise, and print.

    Args:
        quick: measure the limits in some 15 seconds, more coarsely.
        json_path: where to write all of it as JSON, if anywhere; on standard output it stands alone.
        fresh: measure them again, whatever is kept.

    Returns:
        The exit code: 1 where something is wrong, 0 where nothing is, whatever could be better.
    """
    if not json_path and sys.stderr.isatty():
        print("Looking at this machine, and measuring what it can do (under a minute, once) ...", file=sys.stderr)
    result = examine(survey(), *_limits(quick, fresh))
    write_json(json_path, to_json(result))
    if json_path != STDOUT:
        diagnosis(result, console_beside(json_path))
    return result.exit_code


def examine(found: Mapping[str, Any], limits: Limits | None = None, left_out: Sequence[LeftOut] = ()) -> Diagnosis:
    """What doctor makes of a survey and of limits: all that it prints."""
    limits = limits or Limits()
    findings, failed = apply_rules({**found, "limits": to_json(limits.measures)})
    nvidia = found["nvidia"] or {}
    software = {
        **found["software"],
        "driver": nvidia.get("driver"),
        "driver_cuda": nvidia.get("cuda"),
        "loaded": found["loaded"],
    }
    parts = set(found) - {*_SOFTWARE, "environment", "left_out"}
    return Diagnosis(
        overdrive=__version__,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        findings=tuple(findings),
        left_out=(*(LeftOut(**each) for each in found["left_out"]), *left_out, *failed),
        machine={name: found[name] for name in found if name in parts},
        software=software,
        environment=dict(found["environment"]),
        limits=limits,
    )


def _limits(quick: bool, fresh: bool) -> tuple[Limits | None, Sequence[LeftOut]]:
    """What was measured; or that it could not be, with the reason. Single ones that could not are in `missing`."""
    began = time.time()
    try:
        found = measured_limits(quick=quick, fresh=fresh)
    except LimitsUnavailable as error:
        return None, [LeftOut("limits", str(error).rstrip("."))]
    return replace(found, fresh=found.when >= began), ()


@program_command
@click.option("--quick", is_flag=True, help="Measure less precisely, in about 15 seconds.")
@click.option("--fresh", is_flag=True, help="Measure again, even if results are kept.")
@json_option
@stdin_option
@click.option("--for", "wanted", is_flag=True, help="Predict what SCRIPT needs: memory by part, steps on GPUs.")
@click.option(
    "--pool", "among_ranks", is_flag=True, help="Measure the network between processes and hosts: bandwidth, latency."
)
@click.option(
    "--ranks",
    type=many_ranks.NUMBERS,
    metavar="N or N..M",
    help="With --pool: the number of processes, here. With --for: the number of ranks, or a range (8..4096).",
)
@click.option(
    "--memory",
    type=Parsed("size", bytes_in),
    metavar="SIZE",
    help="With --for and --ranks: memory of each rank (80GB).",
)
@click.option(
    "--link",
    type=LINK,
    metavar="LINK",
    help="With --for and --ranks: the network between them: 10Gbit,50us, or a name from data sheets (10gbe, 25gbe, "
    "100gbe, hdr, ndr), or a file of --pool --json (pool.json). Each rank is a machine like this one.",
)
@many_ranks.stated_options
@program_argument("[SCRIPT [ARGS]...]")
def command(
    quick: bool,
    fresh: bool,
    json_path: Path | None,
    stdin: str | None,
    wanted: bool,
    among_ranks: bool,
    ranks: tuple[int, int] | None,
    memory: int | None,
    link: Link | Measured | None,
    stated: Stated,
    words: tuple[str, ...],
) -> None:
    """Measure what this machine can do, and find what is set up wrong on it.

    Nothing is changed: each finding says what it costs and which command fixes it. The exit code is 1 if
    something is wrong, otherwise 0, even if something could be better.

    With --for, it runs the first steps of SCRIPT in trials instead, and predicts the memory that they need, by part,
    and the time of a step on GPUs that are not here. With --ranks, it predicts memory and time on each rank under each
    layout, and says which layout is the fastest that fits; with --ranks 8..4096, the time of a step on more and more
    ranks, of which some may be slow or fail, and what breaks first.

    With --pool, or as `overdrive pool`, it measures the network between processes instead: those of this machine, or
    all that `torchrun ... -m overdrive pool` or `srun overdrive pool` starts.
    """
    if among_ranks:
        if wanted or fresh or memory or link or stated.any or words:
            fail("--pool measures what goes between ranks: run it alone.")
        if ranks and ranks[0] != ranks[1]:
            fail("--pool is measured with one number of --ranks.")
        _run(partial(pool.pool, ranks[0] if ranks else None, quick, json_path))
    if ranks and not wanted:
        fail("--ranks is for --pool, or for --for SCRIPT.")
    if memory and not ranks:
        fail("--memory is what each of --ranks has, with --for SCRIPT.")
    if link and not ranks:
        fail("--link is what connects --ranks, with --for SCRIPT.")
    if not ranks:
        stated.refused_without_sizes()
    asked = many_ranks.asked(ranks, memory, link, stated) if ranks else None
    if wanted and fresh:
        fail("--fresh measures the machine's limits again: run it without --for first.")
    if wanted:
        _run(partial(_requirements, parse_trial_program(words, stdin), quick, json_path, asked))
    if words:
        fail(f"doctor looks at the machine, not at {words[0]}: put --for before it to ask what it needs.")
    _run(partial(doctor, quick, json_path, fresh))


def _requirements(program: Program, quick: bool, json_path: Path | None, asked: OnRanks | Sizes | None) -> int:
    from overdrive.cli import requirements  # NumPy, which looking at the machine does without

    return requirements.wanted(program, quick, json_path, asked)


def _run(work: Callable[[], int]) -> NoReturn:
    """End with its exit code."""
    with faults_as_sentences(goes_on=False, failed=CannotCount):
        sys.exit(work())
