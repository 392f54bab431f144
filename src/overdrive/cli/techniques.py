"""The command line of `overdrive techniques`."""

from __future__ import annotations

import click

from overdrive.cli.line import fail


@click.command()
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """The catalogue, or one technique's card."""
    from overdrive.core.plan.removed import REMOVED
    from overdrive.techniques.catalogue import broken, catalogue

    known = catalogue()
    if name is None:
        width = max(map(len, known))
        for technique in known.values():
            click.echo(f"{technique.name:{width}}  {technique.contract!s:<11}  {technique.summary()}")
        for entry, reason in broken().items():
            click.echo(f"{entry} is left out ({reason})", err=True)
        return
    if name in REMOVED:
        fail(f"{name} was {REMOVED[name]}.")
    if name not in known:
        fail(f"There is no technique {name}; `overdrive techniques` lists them.")
    technique = known[name]
    origin = f", from {technique.package}" if technique.package else ""
    click.echo(f"{technique.name}  (family {technique.family}, contract {technique.contract}{origin})\n")
    click.echo(technique.card())
    if technique.knobs:
        click.echo("\nKnobs:")
        for knob in technique.knobs:
            choices = f", one of {', '.join(map(str, knob.choices))}" if knob.choices else ""
            click.echo(f"  {knob.name} = {knob.default}{choices}: {knob.meaning}")
