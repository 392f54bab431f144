"""The command line of `overdrive pack`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command


@program_command
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the samples and the plan.")
@click.option("--samples", type=click.Choice(["decoded"]), default="decoded", help="The finished samples.", hidden=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def pack(output: Path | None, samples: str, words: tuple[str, ...]) -> None:
    """Write the finished samples of the program's data sets into a folder, with a plan that starts with them.

    What the data sets make of their files, where that is always the same: the table of technique sample_cache, by
    default in SCRIPT.packed beside the script. A pack that was broken off goes on where it was. The files themselves
    stay as they are, and must stay: the program looks for them where they are.
    """
    program = parse_program(words)
    from overdrive.commands import pack as work

    with faults_as_sentences():
        try:
            code = work.write_pack(program, output or work.default_folder(program))
        except work.CannotPack as error:
            fail(str(error), 1)
    sys.exit(code)
