"""The command line of `overdrive run`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.line import fail, parse_program, program_command


@program_command
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
    from overdrive.commands import run as work
    from overdrive.core.plan import PlanError

    techniques = []
    if plan_path is not None:
        try:
            plan = work.read_plan(plan_path, program)
        except PlanError as error:
            fail(str(error))
        except OSError as error:
            fail(f"The plan {plan_path} cannot be read: {error.strerror}.")
        techniques = [(each.name, each.settings) for each in plan.techniques]
        work.prepare_environment(techniques)
    sys.exit(work.run(program, techniques, plan_path.name if plan_path else None, record))
