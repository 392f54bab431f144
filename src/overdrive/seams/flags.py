"""Seam of a script's command line where absl or fire reads it: the program's flags, a function's parameters.

`app.run(main)` parses absl's flags; `fire.Fire(train)` calls a function with what the command line says of its
parameters. Of absl's own flags, and those that libraries define, none is told.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from overdrive.core.hyperparameters import OPTION, ValuePlace
from overdrive.core.whose import is_library
from overdrive.seams.patch import Patches

Heard = Callable[[list[ValuePlace]], None]


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
