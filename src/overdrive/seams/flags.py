"""Seam of a script's command line where absl, fire or tyro reads it: the program's flags, a function's parameters, the
fields of a data class.

`app.run(main)` parses absl's flags; `fire.Fire(train)` and `tyro.cli(train)` call a function with what the command
line says of its parameters; `tyro.cli(Args)` makes a data class of it. Of absl's own flags, and those that libraries
define, none is told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from overdrive.core.hyperparameters import OPTION, ValuePlace
from overdrive.core.whose import is_library
from overdrive.seams.patch import Patches

Heard = Callable[[list[ValuePlace]], None]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def watch_absl(patches: Patches, heard: Heard) -> None:
    from absl.flags import FlagValues

    parse = FlagValues.__call__

    @functools.wraps(parse)
    def parsed(self: Any, argv: Sequence[str], *more: Any, **named: Any) -> Any:
        rest = parse(self, argv, *more, **named)
        if list(argv[1:]) == sys.argv[1:]:
            with contextlib.suppress(Exception):  # flags of the program's own making are not told
                heard(_absl_places(self))
        return rest

    patches.replace(FlagValues, "__call__", parsed)


def _absl_places(flags: Any) -> list[ValuePlace]:
    found = []
    for module, defined in flags.flags_by_module_dict().items():
        file = getattr(sys.modules.get(module), "__file__", None)  # the main module stands under the script's name
        if file is not None and is_library(file):
            continue
        for flag in defined:
            choices = getattr(flag.parser, "enum_values", None) or ()
            found += place_of(f"--{flag.name}", flag.value, choices, on=f"--{flag.name}", off=f"--no{flag.name}")
    return found


def watch_fire(patches: Patches, heard: Heard) -> None:
    import fire

    call = fire.Fire

    @functools.wraps(call)
    def called(component: Any = None, command: Any = None, *more: Any, **named: Any) -> Any:
        if component is None:  # fire takes the names of who calls it: that would be this function
            caller = sys._getframe(1)
            component = {**caller.f_globals, **caller.f_locals}
            if command is None:
                component = {name: _told(each, heard) for name, each in component.items()}
        elif command is None:
            component = _with_heard_calls(component, heard)
        return call(component, command, *more, **named)

    patches.replace(fire, "Fire", called)


def _with_heard_calls(component: Any, heard: Heard) -> Any:
    if type(component) is dict:
        return {name: _with_heard_calls(each, heard) for name, each in component.items()}
    return _told(component, heard)


def _told(component: Any, heard: Heard) -> Any:
    """A function that tells what it is called with; what else fire takes (classes, modules) stays as it is."""
    if not inspect.isfunction(component) or inspect.iscoroutinefunction(component):
        return component

    @functools.wraps(component)
    def told(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(TypeError, ValueError):  # the call itself will say what is wrong with it
            given = inspect.signature(component).bind(*args, **kwargs)
            given.apply_defaults()
            heard([place for name, value in given.arguments.items() for place in _fire_places(name, value)])
        return component(*args, **kwargs)

    return told


def _fire_places(name: str, value: Any) -> list[ValuePlace]:
    return place_of(f"--{name}", value, (), on=f"--{name}=True", off=f"--{name}=False")


def watch_tyro(patches: Patches, heard: Heard) -> None:
    import tyro

    parse = tyro.cli

    @functools.wraps(parse)
    def parsed(f: Any, *more: Any, **named: Any) -> Any:
        own_words = named.get("args") is None or list(named["args"]) == sys.argv[1:]
        if not own_words or named.get("config"):
            return parse(f, *more, **named)
        dash = "_" if named.get("use_underscores") else "-"
        if inspect.isfunction(f):
            return parse(_told_to_tyro(f, dash, heard), *more, **named)
        made = parse(f, *more, **named)
        if isinstance(f, type) and dataclasses.is_dataclass(f):
            with contextlib.suppress(Exception):  # a class of the program's own making is not told
                heard(_tyro_fields(made[0] if named.get("return_unknown_args") else made, "", dash))
        return made

    patches.replace(tyro, "cli", parsed)


def _told_to_tyro(function: Any, dash: str, heard: Heard) -> Any:
    """Tells what it is called with: to the end of the call the program may have trained."""

    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            given = inspect.signature(function).bind(*args, **kwargs)
            given.apply_defaults()
            typed = [name for name, each in given.signature.parameters.items() if each.kind in _BY_NAME]
            heard(_tyro_places(function, {name: given.arguments[name] for name in typed}, "", dash))
        return function(*args, **kwargs)

    return told


def _tyro_fields(made: Any, prefix: str, dash: str) -> list[ValuePlace]:
    """Of a data class."""
    values = {field.name: getattr(made, field.name) for field in dataclasses.fields(made) if field.init}
    return _tyro_places(type(made), values, prefix, dash)


def _tyro_places(annotated: Any, values: Mapping[str, Any], prefix: str, dash: str) -> list[ValuePlace]:
    """What its annotations may have given another name or form (`Annotated`, a subcommand) is not told."""
    found = []
    hints = get_type_hints(annotated, include_extras=True)
    for own, value in values.items():
        hint = hints.get(own)
        name = f"{prefix}{own.replace('_', dash)}"
        if hasattr(hint, "__metadata__"):
            continue
        if dataclasses.is_dataclass(value):
            found += _tyro_fields(value, f"{name}.", dash) if type(value) is hint else []
            continue
        if hint is float and type(value) is int:  # a default that is written as `0`
            value = float(value)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        group, last = name[: len(prefix)], name[len(prefix) :]
        off = f"--{group}no{dash}{last}"
        found += place_of(f"--{name}", value, choices, on=f"--{name}", off=off)
    return found


def place_of(name: str, value: Any, choices: Sequence[Any], on: str = "", off: str = "") -> list[ValuePlace]:
    """Of an option's value; none where nothing is known of what else it could be, as of a path.

    Args:
        on, off: the words that switch it, where its value is one of two.
    """
    if isinstance(value, bool):
        return [ValuePlace(OPTION, name, value, on=on, off=off)]
    if not isinstance(value, (int, float)) and not (isinstance(value, str) and choices):
        return []
    return [ValuePlace(OPTION, name, value, choices=tuple(str(each) for each in choices))]
