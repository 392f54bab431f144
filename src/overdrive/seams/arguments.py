"""Seam of a script's command line: which options its parser has, heard when it parses, never read from its source.

argparse (and what is built on it, such as `HfArgumentParser` and simple_parsing), click, typer, absl, fire, tyro, and
what overrides a configuration: Hydra, OmegaConf, jsonargparse. An option that the script does not parse from the
process's own words (`parse_args([])`) is not told: further words would not reach it. What a first parser leaves over
for a second one (`parse_known_args`) is among these words.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

from overdrive.core.hyperparameters import OPTION, ValuePlace
from overdrive.seams.arrival import Arrival
from overdrive.seams.configurations import CONFIGURATIONS
from overdrive.seams.flags import place_of, watch_absl, watch_fire
from overdrive.seams.patch import Patches

Heard = Callable[[list[ValuePlace]], None]
Found = TypeVar("Found")
_TYPERS_OWN = "typer._click.core"  # what typer has of click's since it is no longer built on click itself
_FLAGS_OF_THEIR_OWN = ("fire.core", "hydra.main")  # whose parsers ask for no option of the program's
_OF_A_CALL = ("PRECALL", "KW_NAMES")  # between what a call is given last and the call itself


def enter(heard: Heard) -> Callable[[], None]:
    """Have `heard` called with the options of each parser that parses; returns what takes the patches away."""
    patches = Patches()
    arrivals = [
        Arrival("argparse", lambda: _watch_argparse(patches, heard)),
        Arrival("click", lambda: _watch_click(patches, heard, "click")),
        Arrival(_TYPERS_OWN, lambda: _watch_click(patches, heard, _TYPERS_OWN)),
        Arrival("absl.flags", lambda: watch_absl(patches, heard)),
        Arrival("fire", lambda: watch_fire(patches, heard)),
        *(Arrival(name, functools.partial(watch, patches, heard)) for name, watch in CONFIGURATIONS.items()),
    ]
    for arrival in arrivals:
        arrival.watch()

    def leave() -> None:
        for arrival in arrivals:
            arrival.stop()
        patches.restore()

    return leave


def _watch_argparse(patches: Patches, heard: Heard) -> None:
    from argparse import ArgumentParser

    parse = ArgumentParser.parse_known_args
    depth = 0  # a subcommand's parser parses inside its parent's call, words that it is given
    rests: list[Any] = []  # what parsers of the process's words have left over

    @functools.wraps(parse)
    def parse_known_args(self: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        nonlocal depth
        of_the_process = depth > 0 or _of_the_process(args, rests, sys._getframe(1))
        depth += of_the_process
        try:
            result = parse(self, args, *more, **named)
        finally:
            depth -= of_the_process
        if of_the_process:
            rests.append(result[1])
            heard(_before(_guarded(_commands_of_argparse, self, None), _guarded(_argparse_places, self, result[0])))
        return result

    patches.replace(ArgumentParser, "parse_known_args", parse_known_args)


def _of_the_process(args: Any, rests: Sequence[Any], frame: Any) -> bool:
    """Whether these are the command line's words, or those that another parser has left of them: so that further ones
    would be among them. Where it has none, it is told by the call (in `frame`, or behind argparse's own)."""
    while frame.f_back is not None and frame.f_globals.get("__name__") == "argparse":
        frame = frame.f_back
    if frame.f_globals.get("__name__") in _FLAGS_OF_THEIR_OWN:
        return False
    if args is None or any(args is rest for rest in rests):
        return True
    if not isinstance(args, (list, tuple)) or list(args) != sys.argv[1:]:
        return False
    return bool(args) or (isinstance(args, list) and not _is_written_out(frame))


def _is_written_out(frame: Any) -> bool:
    """Whether the call that is under way is given no words for good: `parse_args([])`, as scripts have it that come of
    notebooks."""
    up_to_it = [each for each in dis.get_instructions(frame.f_code) if each.offset <= frame.f_lasti][:-1]
    given = [each for each in up_to_it if each.opname not in _OF_A_CALL and each.argval != ("args",)]
    return bool(given) and given[-1].opname == "BUILD_LIST" and given[-1].arg == 0


def _watch_click(patches: Patches, heard: Heard, module: str) -> None:
    """`module`: click, or what has its classes."""
    command = sys.modules[module].Command
    parse = command.parse_args

    @functools.wraps(parse)
    def parse_args(self: Any, context: Any, args: Any) -> Any:
        result = parse(self, context, args)
        heard(_before(list(getattr(self, "commands", ())), _guarded(_click_places, self, context)))
        return result

    patches.replace(command, "parse_args", parse_args)


def _before(commands: Sequence[str], places: list[ValuePlace]) -> list[ValuePlace]:
    """Options of a parser with commands stand before the one that was given."""
    given = next((word for word in sys.argv[1:] if word in commands), "")
    return [replace(place, before=given) for place in places]


def _commands_of_argparse(parser: Any, parsed: Any) -> list[str]:
    from argparse import _SubParsersAction

    return [str(name) for action in parser._actions if isinstance(action, _SubParsersAction) for name in action.choices]


def _guarded(read: Callable[[Any, Any], list[Found]], parser: Any, parsed: Any) -> list[Found]:
    try:
        return read(parser, parsed)
    except Exception:  # a parser of the program's own making; its options are not told
        return []


def _argparse_places(parser: Any, parsed: Any) -> list[ValuePlace]:
    from argparse import _StoreAction

    places = []
    for action in parser._actions:
        words = list(action.option_strings)
        value = getattr(parsed, str(action.dest), None)
        if not words or value is None:
            continue
        name = _longest(words)
        if action.type is float and type(value) is int:  # a default that is written as `0`
            value = float(value)
        if action.nargs == 0:
            if isinstance(value, bool) and isinstance(action.const, bool):
                on, off = (name, "") if action.const else ("", name)
                places.append(ValuePlace(OPTION, name, value, on=on, off=off, others=_but(name, words)))
            elif isinstance(value, bool) and (negative := [word for word in words if word.startswith("--no-")]):
                others = _but(name, words)
                places.append(ValuePlace(OPTION, name, value, on=name, off=negative[0], others=others))
        elif action.nargs in (None, "?") and action.type is bool:  # any word is on, but for the empty one
            places.append(ValuePlace(OPTION, name, value, on=f"{name}=True", off=f"{name}="))
        elif type(action) is _StoreAction and action.type is None and not isinstance(value, str):
            continue  # a default that is a number: what is typed comes as a text
        elif action.nargs in (None, "?"):
            places += place_of(name, value, action.choices or ())
    return places


def _click_places(command: Any, context: Any) -> list[ValuePlace]:
    places = []
    for option in command.params:
        value = context.params.get(option.name)
        if value is None or not str((*option.opts, "")[0]).startswith("-") or getattr(option, "multiple", False):
            continue
        name = _longest(option.opts)
        if getattr(option, "is_flag", False):
            if isinstance(value, bool):
                off = _longest(option.secondary_opts) if option.secondary_opts else ""
                others = _but(name, (*option.opts, *option.secondary_opts))
                places.append(ValuePlace(OPTION, name, value, on=name, off=off, others=others))
        elif option.nargs == 1:
            kind = getattr(option, "type_descriptor", None) or option.type  # of typer's own; click's
            choices = [_plain(each) for each in getattr(kind, "choices", None) or ()]
            places += place_of(name, _plain(value), choices)
    return places


def _plain(value: Any) -> Any:
    """As it is typed: typer's choices are members of an `Enum`."""
    return value.value if isinstance(value, Enum) else value


def _but(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """The other spellings."""
    return tuple(word for word in words if word != name)


def _longest(words: Sequence[str]) -> str:
    return max((word for word in words if not word.startswith("--no-")), key=len, default=words[0])
