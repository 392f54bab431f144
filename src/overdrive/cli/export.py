"""`overdrive export`: a program's model for another engine, with a runner, its proof and its latency."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import (
    fail,
    faults_as_sentences,
    parse_trial_program,
    program_argument,
    program_command,
    repeat,
)
from overdrive.cli.values import stdin_option
from overdrive.core.json_data import to_json
from overdrive.core.program import Program
from overdrive.core.units import several
from overdrive.targets.export import MISSING, PATIENCE, CannotExport, Export, export, export_to_fpga, missing
from overdrive.targets.folder import put, why_not
from overdrive.targets.fpga.page import lines
from overdrive.targets.fpga.verdict import Designed
from overdrive.targets.order import FPGA, Order
from overdrive.targets.pages import milliseconds, remarks, write_pages
from overdrive.targets.result import Exported
from overdrive.trials.pool import TrialPool


def write_export(program: Program, order: Order, place: Path, json_path: Path | None) -> int:
    """Returns the exit code.

    Raises:
        CannotExport: with the reason.
    """
    console = console_beside(json_path, lasts=True, soft_wrap=True)
    console.print(f"Running {program.command()}, and recording what its model is given.", markup=False)
    result: Exported | Designed
    with TrialPool(first_patience=PATIENCE) as pool:
        try:
            with console.status(""):
                if order.target == FPGA:
                    folder, result = export_to_fpga(pool, program, order, place)
                else:
                    found = export(pool, program, order)
                    folder, result = found.folder, _result(found, order, place)
        except CannotExport:
            repeat(pool.last_output)
            raise
        if isinstance(result, Exported):
            write_pages(result, folder, program.command())
        put(folder, place)
    if isinstance(result, Exported):
        _tell(result, console.print)
    else:
        for line in lines(result):
            console.print(line, markup=False)
    write_json(json_path, to_json(result))
    return 0


def _result(found: Export, order: Order, place: Path) -> Exported:
    made = found.made
    return Exported(
        folder=str(place),
        target=order.target,
        model=made.model,
        artefact=made.artefact,
        signature=found.signature,
        proof=found.proof,
        latency=found.latency,
        calls=made.calls,
        recorded=made.recorded,
        other_models=made.others,
        left=made.left,
        notes=made.notes,
    )


def _tell(result: Exported, say: Callable[..., None]) -> None:
    say(f"{result.model}: {several(result.calls, 'call')}, {result.recorded} of them kept as inputs.", markup=False)
    for each in remarks(result):
        say(f"  {each}", markup=False)
    say(f"proof   {result.proof.level}: {result.proof.sentence}", markup=False)
    for timed in result.latency:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in timed.shapes.items())
        sides = f"{milliseconds(timed.artefact.p50)} ms a call, the program {milliseconds(timed.eager.p50)}"
        say(f"p50     {shapes}: {sides}; program / artefact {timed.speedup.as_speedup()}", markup=False)
    say(f"folder  {result.folder}", markup=False)


@program_command
@click.option("--to", "target", type=click.Choice(list(MISSING)), help="The format to export to.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The folder to write.  [default: SCRIPT.export-TARGET]",
)
@click.option(
    "--model",
    default="",
    metavar="CLASS",
    help="If there are several models, the one of this class; CLASS:2: the second of that class.",
)
@click.option("--to-end", is_flag=True, help="Run the script to its end, however long it only calls its model.")
@click.option("--force", is_flag=True, help="Replace an existing export.")
@json_option
@stdin_option
@program_argument("SCRIPT [ARGS]...")
def command(
    target: str | None,
    output: Path | None,
    model: str,
    to_end: bool,
    force: bool,
    json_path: Path | None,
    stdin: str | None,
    words: tuple[str, ...],
) -> None:
    """Convert the model that the program calls for another engine: a folder with a runner, a proof and its latency.

    The script runs as it is, in a copy that leaves no trace, to its end or until it has only called its model for a
    while. The model is exported as it is then; that of a training script is the trained one.
    """
    if target is None:
        fail(f"Say what it is exported to: --to with {', '.join(MISSING)}.")
    program = parse_trial_program(words, stdin)
    place = Path(os.path.abspath(output or program.beside(f".export-{target}")))
    if wrong := why_not(place, force):
        fail(wrong)
    if lacking := missing(target):
        fail(f"{lacking}.", 1)
    with faults_as_sentences(goes_on=False, failed=CannotExport):
        sys.exit(write_export(program, Order(target, model, to_end), place, json_path))
