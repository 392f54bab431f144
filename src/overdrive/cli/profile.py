"""`overdrive profile`: where a program's time goes, in the terminal, as HTML, as a trace and as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import faults_as_sentences, parse_trial_program, program_argument, program_command, repeat
from overdrive.cli.places import CannotWrite, check_places
from overdrive.cli.values import stdin_option
from overdrive.core.atomic_file import write_atomically
from overdrive.core.json_data import to_json
from overdrive.core.program import Program
from overdrive.insight.profile.measure import CannotProfile, measure
from overdrive.insight.profile.measured import Measured
from overdrive.insight.profile.operators import Roof, number_format
from overdrive.insight.profile.page import page
from overdrive.insight.profile.result import profile_of
from overdrive.insight.profile.terminal import table
from overdrive.machine.limits import LimitsUnavailable, measured_limits
from overdrive.trials.pool import TrialPool

__all__ = ["CannotProfile", "profile"]


def profile(program: Program, output: Path, trace: Path | None, json_path: Path | None, advise: bool) -> int:
    """Returns the exit code.

    Raises:
        CannotProfile: with the reason.
        CannotWrite: there is no place to write to.
    """
    check_places(program, {"-o": output, "--trace": trace, "--json": json_path})
    console = console_beside(json_path, lasts=True)
    with TrialPool() as pool:
        try:
            with console.status("") as status:
                found = measure(pool, program, advise, lambda stage: status.update(f"{program.name}: {stage}"))
                status.update("the limits of this machine")
                roof, missing = _roof(found)
        except CannotProfile:
            repeat(pool.last_output)
            raise
        result = profile_of(program, found, roof, missing, advise)
        traced = _write_trace(found.trace, trace) if trace else ""
    write_atomically(output, page(result))
    write_json(json_path, to_json(result))
    table(result, console)
    console.print(f"\nprofile {output}", markup=False, soft_wrap=True)
    if traced:
        console.print(traced, markup=False, soft_wrap=True)
    return 0


def _roof(found: Measured) -> tuple[Roof | None, str]:
    """What the machine does at best in the program's number format; or None and why."""
    device = found.facts.device if found.facts else "cpu"
    threads = found.facts.threads if found.facts and device == "cpu" else 0
    try:
        limits = measured_limits(quick=True)
    except LimitsUnavailable as reason:
        return None, str(reason)
    line = limits.roofline(device, threads)
    kind = number_format(found.details.get("counts", {}).get("kinds", {}))
    flops = line.peak_flops.get(kind, 0.0)
    if not flops or not line.memory_bytes_per_second:
        return None, f"matrix products in {kind}, or memory, could not be measured on this {device}"
    moved, cached = line.memory_bytes_per_second, line.cache_bytes_per_second
    tf32 = line.peak_flops.get("tf32", 0.0) if kind == "fp32" else 0.0
    return Roof(flops, moved, cached, kind, device, limits.busy_share, tf32), ""


def _write_trace(recorded: str, path: Path) -> str:
    """What to say of it."""
    try:
        text = Path(recorded).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "trace   not written: the program ended before one was recorded"
    write_atomically(path, text)
    return f"trace   {path}  (open it at ui.perfetto.dev)"


@program_command
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The HTML page.  [default: SCRIPT.profile.html]")
@click.option("--trace", type=click.Path(path_type=Path), help="Write some steps as a trace for Perfetto.")
@json_option
@stdin_option
@click.option("--advise", is_flag=True, help="Also suggest edits of your code, with file and line.")
@program_argument("SCRIPT [ARGS]...")
def command(
    output: Path | None,
    trace: Path | None,
    json_path: Path | None,
    stdin: str | None,
    advise: bool,
    words: tuple[str, ...],
) -> None:
    """Show where the time of a training step goes, and how far each part is from what this machine can do.

    The script runs as it is, in copies that leave no trace; it and its files are never changed.
    """
    program = parse_trial_program(words, stdin)
    with faults_as_sentences(goes_on=False, wrong=CannotWrite, failed=CannotProfile):
        sys.exit(profile(program, output or program.beside(".profile.html"), trace, json_path, advise))
