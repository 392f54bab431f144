"""The command line of `overdrive tune`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command
from overdrive.cli.values import Duration, Names, ObjectiveName, metric_option
from overdrive.core.contract import Contract
from overdrive.core.metric import Metric
from overdrive.core.objective import Objective


@program_command
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
@metric_option
@click.option(
    "--objective",
    type=ObjectiveName(),
    default="time",
    show_default=True,
    help="What to save: time, memory, or time with no more memory at the peak than SIZE (time-under-memory=8GB).",
)
@click.option(
    "--techniques",
    "only",
    type=Names(),
    default="",
    metavar="NAME,...",
    help="Try these alone. One whose contract is open (it changes the training itself) is tried only when named here.",
)
@click.option("--force", is_flag=True, help="Replace a plan that has techniques even where this tune finds none.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def tune(
    contract: str,
    budget: float,
    output: Path | None,
    json_path: Path | None,
    metric: Metric | None,
    objective: Objective,
    only: frozenset[str],
    force: bool,
    words: tuple[str, ...],
) -> None:
    """Find the fastest plan that keeps the contract, by duels against the program as it is.

    Writes the plan and a report beside the script. The script and its files are never touched. A plan that has
    techniques stays as it is, with its report, where nothing is established this time.

    Exit code: 0 where the tune came to its end, whatever it found; 1 where the program failed or could not be tuned;
    2 where the command line is wrong or the plan cannot be written.
    """
    program = parse_program(words)
    from overdrive.commands import tune as work

    with faults_as_sentences():
        try:
            code = work.tune(
                program,
                Contract(contract),
                budget,
                output or program.plan_path(),
                json_path,
                metric,
                objective,
                only,
                force,
            )
        except work.CannotTune as error:
            fail(str(error))
    sys.exit(code)
