"""Seam of a script's command line where it overrides a configuration: each number of that is an option.

`@hydra.main(...)` and `OmegaConf.merge(..., OmegaConf.from_cli())` take `optim.lr=0.1`; jsonargparse, on which
`LightningCLI` is built, takes `--optim.lr=0.1`. The values are those that the program is given, whatever file, class or
word they come from. What refers to another value (`${optim.lr}`) is not told: it follows that one.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from overdrive.core.hyperparameters import ValuePlace
from overdrive.seams.flags import place_of
from overdrive.seams.patch import Patches
from overdrive.seams.tyro_options import watch_tyro

Heard = Callable[[list[ValuePlace]], None]
_KEY = re.compile(r"[A-Za-z_]\w*")
_SEVERAL_RUNS = {"-m", "--multirun"}  # of Hydra's: its words are lists of values, and each run has others


def watch_hydra(patches: Patches, heard: Heard) -> None:
    import hydra

    main = hydra.main

    @functools.wraps(main)
    def of_command_line(*words: Any, **named: Any) -> Callable[[Any], Any]:
        decorate = main(*words, **named)

        def decorated(task: Any) -> Any:
            reads = True

            @functools.wraps(task)
            def told(configuration: Any) -> Any:
                if reads and not _SEVERAL_RUNS & {*sys.argv[1:]}:
                    heard(_places_of(configuration, _behind_overrides()))
                return task(configuration)

            run = decorate(told)

            @functools.wraps(run)
            def called(*given: Any, **others: Any) -> Any:
                nonlocal reads
                reads = not (given or others)  # else a configuration is given: no words are read
                return run(*given, **others)

            return called

        return decorated

    patches.replace(hydra, "main", of_command_line)


def _behind_overrides() -> str:
    """The first option behind the words that override: they must stand in one row, which argparse takes as one."""
    words = iter(sys.argv[1:])
    next((word for word in words if "=" in word and not word.startswith("-")), None)
    return next((word for word in words if word.startswith("-")), "")


def watch_omegaconf(patches: Patches, heard: Heard) -> None:
    from omegaconf import OmegaConf

    from_cli = OmegaConf.from_cli
    typed: list[Any] = []  # what the command line says

    @functools.wraps(from_cli)
    def of_command_line(args_list: Any = None) -> Any:
        made = from_cli(args_list)
        if args_list is None or list(args_list) == sys.argv[1:]:
            typed.append(made)
        return made

    patches.replace(OmegaConf, "from_cli", staticmethod(of_command_line))
    for name in ("merge", "unsafe_merge"):
        patches.replace(OmegaConf, name, staticmethod(_heard_merge(getattr(OmegaConf, name), typed, heard)))


def _heard_merge(merge: Any, typed: list[Any], heard: Heard) -> Any:
    @functools.wraps(merge)
    def merged(*configurations: Any) -> Any:
        made = merge(*configurations)
        if configurations and any(configurations[-1] is each for each in typed):  # the last one counts
            heard(_places_of(made))
        return made

    return merged


def _places_of(configuration: Any, before: str = "") -> list[ValuePlace]:
    """Of OmegaConf's."""
    from omegaconf import OmegaConf

    with contextlib.suppress(Exception):  # of the program's own making: it is not told
        plain = OmegaConf.to_container(configuration, resolve=False)
        return [
            replace(place, before=before)
            for name, value in _numbers(plain)
            for place in place_of(name, value, (), on=f"{name}=true", off=f"{name}=false")
        ]
    return []


def watch_jsonargparse(patches: Patches, heard: Heard) -> None:
    from jsonargparse import ArgumentParser

    parse = ArgumentParser.parse_args

    @functools.wraps(parse)
    def parse_args(self: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        made = parse(self, args, *more, **named)
        if args is None or list(args) == sys.argv[1:]:
            with contextlib.suppress(Exception):
                heard(_typed_places(made.as_dict(), {*_linked(self)}))
        return made

    patches.replace(ArgumentParser, "parse_args", parse_args)


def _linked(parser: Any, before: str = "") -> Iterator[str]:
    """Names of what follows another value (`link_arguments`): as options they are refused."""
    for action in parser._actions:
        if type(action).__name__ == "ActionLink":
            yield before + action.target[0]
        for name in getattr(action, "sub_add_kwargs", {}).get("linked_targets", ()):  # of a class that is chosen
            yield f"{before}{action.dest}.init_args.{name}"
        if isinstance(action.choices, Mapping):  # subcommands, each with a parser
            for name, own in action.choices.items():
                yield from _linked(own, f"{before}{name}.")


def _typed_places(parsed: Mapping[str, Any], linked: Set[str]) -> list[ValuePlace]:
    """What is of a subcommand stands behind its name, without that; the others before it."""
    command = parsed.get("subcommand") or ""
    of_command = f"{command}." if command else "."  # which is in front of no name
    places = [
        replace(place, before=command)
        for name, value in _numbers(parsed)
        if name not in linked and not name.startswith(of_command)
        for place in place_of(f"--{name}", value, (), on=f"--{name}=true", off=f"--{name}=false")
    ]
    own = {name.removeprefix(of_command) for name in linked if name.startswith(of_command)}
    return places + (_typed_places(parsed[command], own) if command else [])


def _numbers(table: Any, prefix: str = "") -> Iterator[tuple[str, bool | int | float]]:
    """Of a table and those within it, by their full names."""
    for key, value in table.items() if isinstance(table, Mapping) else ():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif type(value) in (bool, int, float):
            yield f"{prefix}{key}", value


def _if_it_is_that(watch: Callable[[Patches, Heard], None]) -> Callable[[Patches, Heard], None]:
    @functools.wraps(watch)
    def watched(patches: Patches, heard: Heard) -> None:
        with contextlib.suppress(ImportError, AttributeError):  # a module of the program's own, of that name
            watch(patches, heard)

    return watched


# By the library's name: what watches it, once it has been imported.
CONFIGURATIONS = {
    "hydra": _if_it_is_that(watch_hydra),
    "omegaconf": _if_it_is_that(watch_omegaconf),
    "jsonargparse": _if_it_is_that(watch_jsonargparse),
    "tyro": _if_it_is_that(watch_tyro),
}
