"""Options from `[tool.overdrive]` in a project's pyproject.toml: what stands on the line goes before them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from overdrive.cli.misplaced import takes_a_word

if TYPE_CHECKING:
    from overdrive.core.program import Program

_FILE, _TABLE = "pyproject.toml", "tool.overdrive"


class BadDefaults(click.UsageError):
    """The table cannot be used; the message is one sentence for people."""


def project_file(folder: Path) -> Path | None:
    """The nearest pyproject.toml, in this folder or above it, that has the table."""
    for place in (folder, *folder.parents):
        path = place / _FILE
        try:
            if f"[{_TABLE}".encode() in path.read_bytes():
                return path
        except OSError:
            continue
    return None


def read_table(path: Path) -> Mapping[str, Any]:
    """
    Raises:
        BadDefaults: the file is no TOML.
    """
    import tomlkit  # 0.03 s, which only who has such a file pays
    from tomlkit.exceptions import TOMLKitError

    try:
        found: Any = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise BadDefaults(f"{path} is no valid TOML: {error}.") from None
    for key in _TABLE.split("."):
        found = found.get(key, {})
    return found if isinstance(found, Mapping) else {}


def defaults_of(table: Mapping[str, Any], name: str, command: click.Command, commands: Iterable[str]) -> dict[str, Any]:
    """The defaults of one command, by the names of its parameters: what stands in the table itself, where the command
    has such an option, then what stands in the command's own table.

    Raises:
        BadDefaults: there is no such option, or it takes no such value.
    """
    own = table.get(name, {})
    if not isinstance(own, Mapping):
        raise BadDefaults(f"[{_TABLE}] {name} must be a table, [{_TABLE}.{name}].")
    options = _options(command)
    shared = {key: value for key, value in table.items() if key not in commands and key in options}
    found = {}
    for key, value in {**shared, **own}.items():
        if key not in options:
            from overdrive.core.plan.table import closest

            raise BadDefaults(f"[{_TABLE}.{name}] {key}: {name} has no such option{closest(key, list(options))}.")
        given = _given(value, options[key], f"[{_TABLE}.{name}] {key}")
        if given is not None:
            found[str(options[key].name)] = given
    return found


def check_shared(keys: Iterable[str], known: set[str]) -> None:
    """
    Raises:
        BadDefaults: one is no option of any command.
    """
    for key in sorted(keys):
        if key not in known:
            from overdrive.core.plan.table import closest

            raise BadDefaults(f"[{_TABLE}] {key}: no command has such an option{closest(key, sorted(known))}.")


def option_names(command: click.Command) -> set[str]:
    return set(_options(command))


def _options(command: click.Command) -> dict[str, click.Option]:
    """By their names without the dashes."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name.removeprefix("--"): each for each in options for name in each.opts if name.startswith("--")}


def _given(value: Any, option: click.Option, where: str) -> Any:
    """As click takes it from such a file; None where the option counts as not given."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise BadDefaults(f"{where} must be true or false, not {value!r}.")
        if option.is_bool_flag:
            return value
        return option.flag_value if value else None  # one of several flags that stand for a word each
    if not takes_a_word(option) and isinstance(value, bool):  # as `--survive` alone
        return option.flag_value if value else None
    if option.multiple:
        return [_text(each, option, where) for each in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = ",".join(value)
    return _text(value, option, where)


def _text(value: Any, option: click.Option, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadDefaults(f"{where} must be a text or a number, not {value!r}.")
    try:
        option.type.convert(str(value), option, None)
    except click.UsageError as error:
        raise BadDefaults(f"{where}: {error.message}.") from None
    return str(value)


def plan_asked_for(plan: Path | None, no_plan: bool, program: Program) -> Path | None:
    """The plan that is named, or lies beside the program; None where there is none, or none is wanted. Of `--plan` and
    `--no-plan` the one on the line counts, where the file has the other.

    Raises:
        UsageError: both stand in the same place.
    """
    if plan is None or not no_plan:
        beside = program.plan_path()
        return beside if plan is None and not no_plan and beside.exists() else plan
    source = click.get_current_context().get_parameter_source
    plan_in_file, none_in_file = (source(name) is ParameterSource.DEFAULT_MAP for name in ("plan_path", "no_plan"))
    if plan_in_file == none_in_file:
        raise click.UsageError("Give either --plan or --no-plan.")
    return None if plan_in_file else plan
