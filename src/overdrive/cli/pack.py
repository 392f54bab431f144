"""The command line of `overdrive pack`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command
from overdrive.cli.values import Size


@program_command
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the shards and the plan.")
@click.option("--shard-size", type=Size(), default="64MB", show_default=True, help="Of one shard, at most.")
@click.option(
    "--samples",
    type=click.Choice(["encoded", "decoded"]),
    default="encoded",
    show_default=True,
    help="The files as they are, or the finished samples.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def pack(output: Path | None, shard_size: int, samples: str, words: tuple[str, ...]) -> None:
    """Write the small files that the program's data sets read into a few large shards, with a plan.

    For parallel and network file systems, where opening a file is what takes the time. The shards are plain
    tar archives, by default in SCRIPT.packed beside the script; a pack that was broken off goes on where it
    was. The files themselves stay as they are, and must stay: the program looks for them where they are.

    With --samples decoded, what the data sets make of them is written instead, where that is always the same:
    the table of technique sample_cache, for runs that are to start with all samples decoded.
    """
    program = parse_program(words)
    from overdrive.commands import pack as work
    from overdrive.commands import pack_samples

    with faults_as_sentences():
        try:
            folder = output or work.default_folder(program)
            if samples == "decoded":
                code = pack_samples.write_samples(program, folder)
            else:
                code = work.write_pack(program, folder, shard_size)
        except work.CannotPack as error:
            fail(str(error), 1)
    sys.exit(code)
