"""Seam of a script's command line where tyro reads it: whatever it makes, each number of that is an option.

`tyro.cli` calls a function or a class, makes a data class, a class of attrs or pydantic, a named tuple or a table, or
takes one of several by a word (subcommands); each may hold others. All of these come through one function of tyro's,
which is given the options as they are typed, and what was.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from overdrive.core.hyperparameters import ValuePlace
from overdrive.seams.flags import Heard, place_of
from overdrive.seams.patch import Patches

_NUMBERS = {int, float, bool}


@dataclass
class _Line:
    """What is found on a command line.

    Attributes:
        commands: the words that something is taken by, in their order.
        defaults: what is taken without a word, by the names of fields.
        places: options, each with how many of these words stand before it.
        after: how many stand before what is being made; None where it is what is taken without a word: no option of
            that can be written.
    """

    commands: list[str] = field(default_factory=list)
    places: list[tuple[ValuePlace, int]] = field(default_factory=list)
    defaults: dict[str, str | None] = field(default_factory=dict)
    after: int | None = 0

    def read(self, parser: Any, values: Mapping[Any, Any], prefix: str) -> int | None:
        """What is about to be made of this. Returns `after` of it."""
        from tyro import _strings

        after, command = self.after, values.get(_strings.make_subparser_dest(name=prefix))
        if isinstance(command, str) and after is not None:
            by_default = command == self.defaults.get(prefix) and command not in sys.argv[1:]
            self.commands += [] if by_default else [command]
            after = None if by_default else len(self.commands)
        if after is None:
            return None
        for name, several in parser.subparsers_from_intern_prefix.items():
            self.defaults[name] = getattr(several, "default_name", None)
        for argument in parser.args:
            typed = values.get(_strings.make_field_name([argument.intern_prefix, argument.field.intern_name]))
            self.places += [(place, after) for place in _places_of(argument, typed)]
        return after

    def told(self) -> list[ValuePlace]:
        """An option stands before the next of the words; none is told where they are written in another way."""
        if any(each not in sys.argv[1:] for each in self.commands):
            return []
        return [replace(place, before="".join(self.commands[after : after + 1])) for place, after in self.places]


def watch_tyro(patches: Patches, heard: Heard) -> None:
    import tyro

    parse, make = tyro._cli._cli_impl, tyro._calling.callable_with_args
    lines: list[_Line | None] = []

    @functools.wraps(parse)
    def parsed(f: Any, **named: Any) -> Any:
        own_words = named.get("args") is None or list(named["args"]) == sys.argv[1:]
        lines.append(line := _Line() if own_words else None)
        try:
            made = parse(f, **named)
        finally:
            lines.pop()
        if line:  # a function is called after this: in the call the program may train
            heard(line.told())
        return made

    @functools.wraps(make)
    def making(f: Any, parser: Any, default: Any, values: dict[Any, Any], field_name_prefix: str) -> Any:
        line = lines[-1] if lines else None
        if line is None:
            return make(f, parser, default, values, field_name_prefix)
        around = line.after
        with contextlib.suppress(Exception):  # what another tyro names otherwise is not told
            line.after = line.read(parser, values, field_name_prefix)
        try:
            return make(f, parser, default, values, field_name_prefix)
        finally:
            line.after = around

    patches.replace(tyro._cli, "_cli_impl", parsed)
    patches.replace(tyro._calling, "callable_with_args", making)


def _places_of(argument: Any, typed: Any) -> list[ValuePlace]:
    """Of an option; none of one that has no name, or takes several words.

    Args:
        typed: the words as tyro has them, in a list; for a switch whether it is on.
    """
    lowered, hint = argument.lowered, argument.field.type_stripped
    names = getattr(lowered, "name_or_flags", None) or (lowered.name_or_flag,)  # up to tyro 0.9 it had one
    name = max(names, key=len)
    choices = lowered.choices or ()
    if not name.startswith("--") or lowered.instance_from_str is None:
        return []
    if not choices and _NUMBERS.isdisjoint((hint, *get_args(hint))):
        return []
    value: Any = typed
    if not isinstance(typed, bool):
        value = lowered.instance_from_str(typed) if isinstance(typed, list) else argument.field.default
    if isinstance(value, enum.Enum):
        value = value.name if value.name in choices else str(value.value)
    if hint is float and type(value) is int:  # a default that is written as `0`
        value = float(value)
    on, off = _words_of_a_switch(name, lowered.action)
    return place_of(name, value, choices if isinstance(value, str) else (), on=on, off=off)


def _words_of_a_switch(name: str, action: Any) -> tuple[str, str]:
    if action is None:
        return f"{name}=True", f"{name}=False"
    dash = "_" if "_" in name else "-"
    group, dot, last = name.rpartition(".")
    return name, f"{group}.no{dash}{last}" if dot else f"--no{dash}{last[2:]}"
