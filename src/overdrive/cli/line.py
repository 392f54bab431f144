"""How every command reads its line, and how it answers when something is wrong: one sentence, and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

from overdrive.core.program import Program, ProgramError


def fail(sentence: str, code: int = 2) -> NoReturn:
    print(f"overdrive: {sentence}", file=sys.stderr)
    sys.exit(code)


class _ProgramCommand(click.Command):
    """A command whose own words stand before the program; all that follows belongs to the program."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        valued = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in (*option.opts, *option.secondary_opts)
        }
        before = sum(isinstance(parameter, click.Argument) for parameter in self.params) - 1  # PLAN, for verify
        options: list[str] = []
        named: list[str] = []
        rest = list(args)
        while rest and rest[0] not in ("-m", "--"):
            if rest[0].startswith("-") and rest[0] != "-":
                size = 2 if rest[0] in valued else 1
                options += rest[:size]
                del rest[:size]
            elif len(named) < before:
                named.append(rest.pop(0))
            else:
                break
        if rest and rest[0] == "--":
            del rest[0]
        args = [*options, *(["--"] if named or rest else []), *named, *rest]
        return super().parse_args(context, args)


def program_command(function: Callable[..., Any]) -> click.Command:
    made: Callable[[Callable[..., Any]], click.Command] = click.command(
        cls=_ProgramCommand, context_settings={"allow_interspersed_args": False, "max_content_width": 100}
    )
    return made(function)


@contextlib.contextmanager
def faults_as_sentences() -> Iterator[None]:
    """Whatever goes wrong in a long command ends in one sentence; what was established is in the ledger."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except KeyboardInterrupt:
        fail("stopped. What was established is kept: the same command goes on from there.", 130)
    except OSError as error:
        fail(f"{error.filename or 'A file'} could not be used: {error.strerror}. Your script was not touched.", 1)
    except Exception as error:
        if os.environ.get("OVERDRIVE_DEBUG"):
            raise
        fail(
            f"stopped by a defect of its own ({type(error).__name__}: {error}); your script and files are untouched. "
            "OVERDRIVE_DEBUG=1 shows where.",
            70,
        )


def parse_program(words: tuple[str, ...]) -> Program:
    try:
        return Program.parse(words)
    except ProgramError as error:
        fail(str(error))
