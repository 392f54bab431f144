"""All commands under one name.

What a command needs is imported when it is called: `overdrive --help` answers at once, and no framework is imported.
"""

from __future__ import annotations

import click

from overdrive.cli.doctor import doctor
from overdrive.cli.pack import pack
from overdrive.cli.profile import profile
from overdrive.cli.report import report
from overdrive.cli.run import run
from overdrive.cli.techniques import techniques
from overdrive.cli.tune import tune
from overdrive.cli.verify import verify
from overdrive.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overdrive")
def cli() -> None:
    """Runs a deep-learning program, as its author wrote it, as fast as the machine allows."""


for command in (run, tune, verify, pack, doctor, profile, report, techniques):
    cli.add_command(command)


def main() -> None:
    cli(prog_name="overdrive")
