"""The commands: parse, call, print; nothing else."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from overdrive.contract import Contract
from overdrive.program import Program, ProgramError
from overdrive.version import __version__


def fail(sentence: str, code: int = 2) -> NoReturn:
    print(f"overdrive: {sentence}", file=sys.stderr)
    sys.exit(code)


class ProgramCommand(click.Command):
    """A command whose options stand before the program; all that follows belongs to the program."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        valued = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in (*option.opts, *option.secondary_opts)
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-m", "--"):
            at += 2 if args[at] in valued else 1
        if at < len(args) and args[at] == "-m":
            args = [*args[:at], "--", *args[at:]]
        return super().parse_args(context, args)


def program_command(group: click.Group) -> Callable[[Callable[..., Any]], click.Command]:
    made: Callable[[Callable[..., Any]], click.Command] = group.command(
        cls=ProgramCommand, context_settings={"allow_interspersed_args": False, "max_content_width": 100}
    )
    return made


class Duration(click.ParamType):  # type: ignore[type-arg]  # not subscriptable before click 8.5
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s?)?", str(value).strip())
        if not str(value).strip() or parts is None:
            self.fail(f"{value!r} is not a duration; write for example 90s, 10m or 1h30m", param, context)
        hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        total = float(3600 * hours + 60 * minutes + seconds)
        if total <= 0:
            self.fail("the budget must be longer than nothing", param, context)
        return total


def parse_program(words: tuple[str, ...]) -> Program:
    try:
        return Program.parse(words)
    except ProgramError as error:
        fail(str(error))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overdrive")
def cli() -> None:
    """Runs a deep-learning program, as its author wrote it, as fast as the machine allows."""


@program_command(cli)
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="The plan to run under.")
@click.option("--no-plan", is_flag=True, help="Run under no plan, though one lies beside the script.")
@click.option("--record", type=click.Path(path_type=Path), help="Write steps, losses and a hash as JSON.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run(plan_path: Path | None, no_plan: bool, record: Path | None, words: tuple[str, ...]) -> None:
    """Run the whole program under a plan: by default the one beside it, if there is one.

    Same output, same files, same exit code as `python SCRIPT`, and one line more on standard error.
    """
    if plan_path and no_plan:
        fail("Give either --plan or --no-plan.")
    program = parse_program(words)
    if plan_path is None and not no_plan and program.plan_path().exists():
        plan_path = program.plan_path()
    from overdrive import running
    from overdrive.plan import PlanError

    techniques = []
    if plan_path is not None:
        try:
            plan = running.read_plan(plan_path, program)
        except PlanError as error:
            fail(str(error))
        except OSError as error:
            fail(f"The plan {plan_path} cannot be read: {error.strerror}.")
        techniques = [(each.name, each.settings) for each in plan.techniques]
        running.prepare_environment(techniques)
    sys.exit(running.run(program, techniques, plan_path.name if plan_path else None, record))


@program_command(cli)
@click.option(
    "--contract",
    type=click.Choice([str(level) for level in Contract if level is not Contract.OPEN]),
    default="rounding",
    show_default=True,
    help="How much may change: exact = every bit the same; rounding = other orders of summation; "
    "statistical = the same result within the noise of the seed.",
)
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="Time to spend at most.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the plan.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result as JSON.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def tune(contract: str, budget: float, output: Path | None, json_path: Path | None, words: tuple[str, ...]) -> None:
    """Find the fastest plan that keeps the contract, by duels against the program as it is.

    Writes the plan and a report beside the script. The script and its files are never touched.
    """
    program = parse_program(words)
    from overdrive import tune_command

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code = tune_command.tune(program, Contract(contract), budget, output or program.plan_path(), json_path)
    except KeyboardInterrupt:
        fail("stopped. What was established is kept: the same command goes on from there.", 130)
    except tune_command.CannotTune as error:
        fail(str(error))
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
    sys.exit(code)


@cli.command()
@click.argument("name", required=False)
def techniques(name: str | None) -> None:
    """The catalogue, or one technique's card."""
    from overdrive.techniques.catalogue import catalogue

    known = catalogue()
    if name is None:
        width = max(map(len, known))
        for technique in known.values():
            click.echo(f"{technique.name:{width}}  {technique.contract!s:<11}  {technique.summary()}")
        return
    if name not in known:
        fail(f"There is no technique {name}; `overdrive techniques` lists them.")
    technique = known[name]
    click.echo(f"{technique.name}  (family {technique.family}, contract {technique.contract})\n")
    click.echo(technique.card())
    if technique.knobs:
        click.echo("\nKnobs:")
        for knob in technique.knobs:
            choices = f", one of {', '.join(map(str, knob.choices))}" if knob.choices else ""
            click.echo(f"  {knob.name} = {knob.default}{choices}: {knob.meaning}")


def main() -> None:
    cli(prog_name="overdrive")
