"""The command line of `overdrive techniques`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from overdrive.cli.json_output import json_option, write_json
from overdrive.cli.line import fail

if TYPE_CHECKING:
    from overdrive.techniques.technique import Technique


def _names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from overdrive.techniques.catalogue import catalogue

    known = catalogue().items()
    return [CompletionItem(name, help=each.summary()) for name, each in known if name.startswith(begun)]


@click.command()
@json_option
@click.argument("name", required=False, shell_complete=_names)
def command(json_path: Path | None, name: str | None) -> None:
    """List the techniques, or describe one."""
    from overdrive.core.plan.removed import REMOVED
    from overdrive.core.plan.table import closest
    from overdrive.techniques.catalogue import broken, catalogue

    known = catalogue()
    if name is None:
        if json_path:
            write_json(json_path, [_data(each) for each in known.values()])
            return
        width = max(map(len, known))
        for technique in known.values():
            click.echo(f"{technique.name:{width}}  {technique.contract!s:<11}  {technique.summary()}")
        for entry, reason in broken().items():
            click.echo(f"{entry} is left out ({reason})", err=True)
        return
    if name in REMOVED:
        fail(f"{name} was {REMOVED[name]}.")
    if name not in known:
        fail(f"There is no technique {name}{closest(name, list(known))}; `overdrive techniques` lists them.")
    technique = known[name]
    if json_path:
        write_json(json_path, _data(technique))
        return
    origin = f", from {technique.package}" if technique.package else ""
    click.echo(f"{technique.name}  (family {technique.family}, contract {technique.contract}{origin})\n")
    click.echo(technique.card())
    if technique.knobs:
        click.echo("\nKnobs:")
        for knob in technique.knobs:
            choices = f", one of {', '.join(map(str, knob.choices))}" if knob.choices else ""
            click.echo(f"  {knob.name} = {knob.default}{choices}: {knob.meaning}")


def _data(technique: Technique) -> dict[str, Any]:
    return {
        "name": technique.name,
        "family": technique.family,
        "contract": str(technique.contract),
        "summary": technique.summary(),
        "frameworks": list(technique.frameworks),
        "package": technique.package,
        "knobs": [
            {"name": each.name, "default": each.default, "choices": list(each.choices), "meaning": each.meaning}
            for each in technique.knobs
        ],
    }
