"""The command line: a file for each command, which parses, calls and prints."""

from overdrive.cli.group import main

__all__ = ["main"]
