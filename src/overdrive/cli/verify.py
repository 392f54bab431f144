"""The command line of `overdrive verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command
from overdrive.cli.values import Duration, metric_option
from overdrive.core.metric import Metric


@program_command
@click.option("--full", is_flag=True, help="Runs of the whole program, not of its first steps.")
@metric_option
@click.option("--margin", type=float, help="The difference of the metric that you would accept, in its own unit.")
@click.option("--budget", type=Duration(), default="1h", show_default=True, help="Time to spend at most.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write what was compared as JSON.")
@click.argument("plan_path", type=click.Path(path_type=Path), metavar="PLAN")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def verify(
    full: bool,
    metric: Metric | None,
    margin: float | None,
    budget: float,
    json_path: Path | None,
    plan_path: Path,
    words: tuple[str, ...],
) -> None:
    """Prove again that the program under PLAN is the same program, at the plan's level.

    Runs under seeds that were finished are kept: the same command goes on where it was stopped. The exit code is 0
    where the level was seen to hold, 1 where it was not.
    """
    program = parse_program(words)
    if margin is not None and not 0 < margin < float("inf"):
        fail("The margin must be above 0.")
    from overdrive.commands import verify as work
    from overdrive.core.plan import PlanError

    with faults_as_sentences():
        try:
            code = work.verify(plan_path, program, full, metric, margin, budget, json_path)
        except PlanError as error:
            fail(str(error))
        except work.CannotVerify as error:
            fail(str(error), 1)
    sys.exit(code)
