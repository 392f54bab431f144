"""The command line: a file for each command, which parses, calls `overdrive.commands` and exits; nothing else."""

from overdrive.cli.group import main

__all__ = ["main"]
