"""The command line of `overdrive profile`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command


@program_command
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The HTML page. [default: SCRIPT.profile.html]")
@click.option("--trace", type=click.Path(path_type=Path), help="Write some steps as a trace for Perfetto.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the profile as JSON.")
@click.option("--advise", is_flag=True, help="Say as well what an edit of your code could fix, with file and line.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def profile(
    output: Path | None, trace: Path | None, json_path: Path | None, advise: bool, words: tuple[str, ...]
) -> None:
    """Where the time of a training step goes, and how far each part is from what this machine can do.

    The script runs as it is, in copies that leave no trace; it and its files are never touched.
    """
    program = parse_program(words)
    from overdrive.commands import profile as work

    with faults_as_sentences():
        try:
            place = output or work.default_output(program)
            code = work.profile(program, place, trace, json_path, advise)
        except work.CannotProfile as error:
            fail(str(error), 1)
    sys.exit(code)
