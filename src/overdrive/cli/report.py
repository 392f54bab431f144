"""The command line of `overdrive report`."""

from __future__ import annotations

from pathlib import Path

import click

from overdrive.cli.line import fail


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it as one HTML file.")
@click.argument("plan_path", type=click.Path(path_type=Path), metavar="PLAN")
def report(plan_path: Path, output: Path | None) -> None:
    """The evidence behind a plan, in the terminal or as one HTML file."""
    from overdrive.commands import report as work

    try:
        work.report(plan_path, output)
    except work.CannotReport as error:
        fail(str(error))
