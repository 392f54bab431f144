"""All commands under one name.

A command's file is imported when it is called: `overdrive --help` answers at once, and no framework is imported.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import IO, Any

import click

from overdrive.cli.defaults import check_shared, defaults_of, option_names, project_file, read_table
from overdrive.cli.later import Later
from overdrive.version import __version__

COMMANDS = {
    "tune": "Find the fastest plan that keeps the contract.",
    "run": "Run the whole program under a plan.",
    "submit": "Run the program as a Slurm job, on one machine or several.",
    "profile": "Show where the time of a training step goes.",
    "doctor": "Measure this machine, and find what is set up wrong on it.",
    "verify": "Prove again that a plan keeps its contract.",
    "search": "Search for better hyperparameters, and compare them with the defaults on fresh seeds.",
    "report": "Show the evidence behind a plan.",
    "techniques": "List the techniques, or describe one.",
    "export": "Convert the program's model for another engine, with a runner and a proof.",
    "serve": "Answer requests with an exported model.",
    "pack": "Write a program's decoded samples into a folder.",
}
# A word that stands for a command with an option.
SHORT = {"pool": ("doctor", "--pool")}

_BEGIN = {
    "overdrive tune --budget 5m train.py": "writes a plan and a report beside the script",
    "overdrive run train.py": "runs the script under the plan",
}


class _Wrong(click.ClickException):
    """A line that cannot be read: one sentence, without the lines of usage that would stand above it."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        told = error.format_message().rstrip(".") + ("" if error.format_message().endswith("?") else ".")
        path = error.ctx.command_path if error.ctx else "overdrive"
        asks = isinstance(error, (click.NoSuchOption, click.MissingParameter))
        super().__init__(f"{told} `{path} --help` lists the options." if asks else told)

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"overdrive: {self.message}", file=file, err=file is None)


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found: click.Command = import_module(f"overdrive.cli.{name}").command
        return found

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        own = {name for option in self.params for name in option.opts} | {"-h", "--help"}
        completing = context.resilient_parsing  # in a shell
        if args and args[0] in SHORT:
            args = [*SHORT[args[0]], *args[1:]]
        if args and args[0] not in {*COMMANDS, *own} and not completing:
            from overdrive.cli.unknown import meant

            raise _Wrong(click.UsageError(meant(args, list(COMMANDS)), context))
        return super().parse_args(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.UsageError as error:
            raise _Wrong(error) from None
        except FileNotFoundError:
            if _has_folder():
                raise
            raise _Wrong(click.UsageError("The working folder is no longer there: change to one that is.")) from None
        except KeyboardInterrupt:  # where no command has its own answer: click's is "Aborted!", and 1
            from overdrive.cli.line import fail

            fail("stopped.", 130)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        with formatter.section("To begin with"):
            formatter.write_dl(list(_BEGIN.items()))


def _has_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="overdrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Makes deep-learning programs faster without editing them, and proves that they learn the same."""
    name = context.invoked_subcommand
    path = project_file(Path.cwd())
    if name is None or path is None:
        return
    command = cli.get_command(context, name)
    assert command is not None
    table = read_table(path)
    others = table.keys() - COMMANDS.keys() - option_names(command)
    if others:  # then all commands are imported, to say whether one has such an option
        commands = filter(None, (cli.get_command(context, each) for each in COMMANDS))
        check_shared(others, {option for each in commands for option in option_names(each)})
    context.default_map = {name: defaults_of(table, name, command, COMMANDS)}


def main() -> int:
    try:
        cli(prog_name="overdrive")
    except Later as later:
        act = later.act
    return act()
