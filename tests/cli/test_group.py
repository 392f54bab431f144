"""The commands under one name: what `overdrive --help` costs, and that each of them is there."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner

from overdrive.cli.group import cli
from tests.conftest import Run

COMMANDS = {"doctor", "export", "pack", "profile", "report", "run", "search", "serve", "submit", "techniques", "tune"}
COMMANDS |= {"verify"}


def test_help_imports_nothing_that_only_a_command_needs(python: Run, tmp_path: Path) -> None:
    """At most what reads a command line: the options of all commands are there, and none of their work."""
    code = (
        "import sys, overdrive.cli\n"
        "heavy = {'torch', 'tensorflow', 'keras', 'numpy', 'rich', 'jinja2', 'tomlkit', 'psutil', 'sqlite3'}\n"
        "rooms = {'core', 'evidence', 'machine', 'proof', 'report', 'seams', 'search', 'techniques', 'trials', "
        "'tuner'}\n"
        "print(sorted(heavy & sys.modules.keys()), sorted(r for r in rooms if f'overdrive.{r}' in sys.modules))"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "[] []\n"


def test_every_command_tells_what_it_does() -> None:
    context = click.Context(cli)
    assert set(cli.list_commands(context)) == COMMANDS
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command and command.help and getattr(command.callback, "__module__", "") == f"overdrive.cli.{name}"


def test_pool_is_a_word_for_an_option_of_doctor() -> None:
    told = [CliRunner().invoke(cli, [*words, "--fresh"]).stderr for words in (["pool"], ["doctor", "--pool"])]
    assert told[0] == told[1] and "--pool measures what goes between ranks" in told[0]
