"""Options of ours that stand after the script, and so go to the script: noticed, and told."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

STARTED_AGAIN = "OVERDRIVE_ENVIRONMENT_READY"  # a variable of a command that started itself anew: what it said is said
_HELP = ("-h", "--help")


@dataclass(frozen=True)
class Misplaced:
    """`given`: the options with their values, as they stand; `meant` and `script`: the two command lines that say
    whose they are."""

    given: str
    meant: str
    script: str

    def sentence(self) -> str:
        return (
            f"{self.given} stands after the script, so it goes to the script. Did you mean `{self.meant}`? "
            f"If it is the script's, `{self.script}` says so."
        )


def options_of(command: click.Command) -> dict[str, click.Option]:
    """A command's own options by each of their names."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name: each for each in options for name in (*each.opts, *each.secondary_opts)}


def takes_a_word(option: click.Option) -> bool:
    """Whether the word after it is its value; one whose value may be left out has it behind `=`."""
    return not option.is_flag and not option._flag_needs_value


def misplaced(name: str, command: click.Command, before: Sequence[str], program: Sequence[str]) -> Misplaced | None:
    """
    Args:
        name: of the command.
        before: the words that stand before the program.
        program: the program and all that follows it.
    """
    start = 2 if program[:1] == ["-m"] else 1
    ours, rest = _apart(options_of(command), program[start:])
    if not ours:
        return None
    head = ["overdrive", name, *before]
    return Misplaced(
        shlex.join(ours),
        shlex.join([*head, *ours, *program[:start], *rest]),
        shlex.join([*head, "--", *program]),
    )


def _apart(options: Mapping[str, click.Option], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The script's words in two: those that this command would take as its own options, with their values; and the
    rest. A value that the option would refuse shows that the option is the script's."""
    ours: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += [word, *left]
            break
        name, given, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.get(name)
        if option is None or name in _HELP or (option.is_flag and given):
            rest.append(word)
        elif option.is_flag or (_takes(option, value) if given else not takes_a_word(option)):
            ours.append(word)
        elif not given and left and _takes(option, left[0]):
            ours += [word, left.pop(0)]
        else:
            rest.append(word)
    return ours, rest


def _takes(option: click.Option, value: str) -> bool:
    try:
        option.type.convert(value, option, None)
    except click.UsageError:
        return False
    return True


def tell(found: Misplaced | None) -> None:
    """Once."""
    if found and STARTED_AGAIN not in os.environ:
        print(f"overdrive: {found.sentence()}", file=sys.stderr)
