"""`overdrive search`: what of a program can be varied, and which values are better than its own on fresh seeds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from overdrive.cli.defaults import plan_asked_for
from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import (
    fail,
    faults_as_sentences,
    parse_trial_program,
    program_argument,
    program_command,
)
from overdrive.cli.places import CannotWrite, check_places
from overdrive.cli.values import METRIC, Duration, Parsed, stdin_option
from overdrive.core.atomic_file import is_stream, write_atomically
from overdrive.core.json_data import to_json
from overdrive.core.metric import Metric
from overdrive.core.plan import PlanError
from overdrive.core.program import Program
from overdrive.core.search_result import COSTS
from overdrive.core.units import duration
from overdrive.report import search as report
from overdrive.report.search_page import page
from overdrive.search.conduct import SearchRequest, conduct, curve_of
from overdrive.search.domain import DomainError, Wish, parse, sensible
from overdrive.search.engine import Damaged, NoOptuna
from overdrive.search.goal import Goal, GoalError
from overdrive.search.listing import CannotList, listing
from overdrive.search.parameters import UnknownParameter
from overdrive.search.samplers import SAMPLERS, NoSampler
from overdrive.search.search import CannotSearch
from overdrive.trials.pool import TrialPool


def show_list(program: Program, json_path: Path | None) -> int:
    """
    Raises:
        CannotList: the program fails by itself, or cannot be watched.
    """
    with TrialPool() as pool:
        found = listing(pool, program)
    told = [each for each in found.parameters if each.told]
    rows = [(each.name, each.default, each.place, each.effect, str(sensible(each) or "")) for each in told]
    report.parameters(rows, program.command(), console_beside(json_path))
    fields = ("name", "default", "place", "moves", "range")
    listed = [dict(zip(fields, row, strict=True)) for row in rows]
    write_json(json_path, {"version": 1, "program": program.command(), "parameters": listed})
    return 0


def show_curve(request: SearchRequest, json_path: Path | None) -> int:
    """
    Raises:
        CannotList, CannotSearch: the program cannot be followed, or has no batch size.
    """
    console = console_beside(json_path)
    with TrialPool() as pool:
        found = curve_of(request, pool, report.Teller(console))
    report.batch_curve(found, console)
    write_json(json_path, to_json(found))
    return 0


def search(request: SearchRequest, page_path: Path, json_path: Path | None) -> int:
    """Returns the exit code: 0 where the search came to its end, whatever it found. Raises as `conduct`."""
    console = console_beside(json_path, lasts=True)
    console.print(
        f"Searching {request.program.command()} for {request.aim()}, for at most {duration(request.budget)}.",
        markup=False,
        soft_wrap=True,
    )
    with TrialPool() as pool:
        result = conduct(request, pool, report.Teller(console))
    write_json(json_path, to_json(result))
    write_atomically(page_path, page(result))
    report.search(result, console)
    console.print(f"\nreport  {page_path}", markup=False, soft_wrap=True)
    return 0


def _aim(goal: str, metric: Metric, direction: str | None, against: str | None, judge: Metric | None) -> Goal:
    """
    Raises:
        GoalError: `goal` is none.
    """
    aim = replace(Goal.parse(goal, metric, direction or ""), against=against or "")
    if against and aim.target is not None:
        fail("--against goes with a metric that is to be the best, and no goal that is a time.")
    if judge and (aim.target is not None or judge.is_loss or judge.function):
        fail("--judge-by takes a number that the program prints, and no goal that is a time.")
    if judge and not direction and Goal.parse(goal, judge).maximize != aim.maximize:
        way = "larger is better of one and smaller of the other"
        fail(f"--metric and --judge-by go different ways, {way}: judge by a number that goes the metric's way.")
    return aim


@program_command
@click.option("--list", "only_list", is_flag=True, help="Show what can be varied, and where it was found.")
@click.option(
    "--batch-curve",
    "only_curve",
    is_flag=True,
    help="Predict the time to the same loss for each batch size, from short trials.",
)
@click.option(
    "--vary",
    "wishes",
    type=Parsed("parameter", parse),
    multiple=True,
    metavar="NAME[=VALUES]",
    help="A parameter: lr=1e-4..1e-1:log, batch-size=32,64,128, or a name alone for its usual range. "
    "May be given several times. By default, learning rate and batch size.",
)
@click.option(
    "--vary-model",
    is_flag=True,
    help="Vary everything in the model that can be varied: depth, width, attention heads and kernel sizes.",
)
@click.option(
    "--metric",
    type=METRIC,
    help="What to improve, at the end of a run: a word before a number in the program's output (Accuracy), a "
    "regular expression with one group, or evaluate() for what a function returned. By default, the training loss.",
)
@click.option(
    "--judge-by",
    "judge",
    type=METRIC,
    help="The metric for the final comparison, on data that the search does not use: 'Test accuracy', if --metric is "
    "that of the validation.",
)
@click.option(
    "--goal",
    default="best",
    show_default=True,
    help="best; 'best in 10m', if every run has that long; or '97 soonest', the first to reach that value.",
)
@click.option(
    "--against",
    type=click.Choice(COSTS),
    help="A cost: look for the configuration with the least of it that is as good as the defaults.",
)
@click.option("--maximize", "direction", flag_value="maximize", help="A larger metric is better.")
@click.option(
    "--minimize", "direction", flag_value="minimize", help="A smaller metric is better. By default, its name decides."
)
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    default=SAMPLERS[0],
    show_default=True,
    help="Which of Optuna's samplers proposes configurations: tpe; cma-es, for two ranges of numbers or more; gp, "
    "Gaussian processes, if there is time for few runs only; or random.",
)
@click.option("--budget", type=Duration(), default="20m", show_default=True, help="Time of all runs together, at most.")
@click.option(
    "--study",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the search, for processes on other machines or GPUs to share. The same command started again "
    "joins a search in any case.",
)
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="The plan for all runs.")
@click.option("--no-plan", is_flag=True, help="Make all runs without a plan, even if there is one beside the script.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the report, an HTML page.")
@json_option
@stdin_option
@program_argument("SCRIPT [ARGS]...")
def command(
    only_list: bool,
    only_curve: bool,
    wishes: tuple[Wish, ...],
    vary_model: bool,
    metric: Metric | None,
    judge: Metric | None,
    goal: str,
    against: str | None,
    direction: str | None,
    sampler: str,
    budget: float,
    study: Path | None,
    plan_path: Path | None,
    no_plan: bool,
    output: Path | None,
    json_path: Path | None,
    stdin: str | None,
    words: tuple[str, ...],
) -> None:
    """Search for better hyperparameters of an unedited program.

    Each configuration is a whole run of the program, in a process of its own whose files are thrown away. The best one
    is then compared with the program's defaults on fresh seeds: "no better than your defaults" is a result. A search
    that was stopped goes on with the same command.

    Exit code: 0 if the search came to its end, whatever it found; 1 if the program failed or has no such metric;
    2 if the command line is wrong; 130 after Ctrl-C.
    """
    program = parse_trial_program(words, stdin)
    plan_path = plan_asked_for(plan_path, no_plan, program)
    metric = metric or Metric()
    wrong, failed = (CannotWrite, GoalError, UnknownParameter, PlanError), (CannotList, CannotSearch)
    with faults_as_sentences(goes_on=not (only_list or only_curve), wrong=wrong, failed=failed):
        try:
            page_path = output or program.beside(".search.html")
            check_places(program, {"-o": page_path, "--json": json_path})
            if only_list:
                sys.exit(show_list(program, json_path))
            aim = _aim(goal, metric, direction, against, judge)
            folder = program.plan_path() if is_stream(page_path) else page_path
            chosen = folder.with_name(f"{program.stem}.search.overdrive.toml")
            request = SearchRequest(
                program, wishes, metric, aim, budget, plan_path, judge, study, sampler, vary_model, chosen
            )
            sys.exit(show_curve(request, json_path) if only_curve else search(request, page_path, json_path))
        except DomainError as error:
            fail(f"{error}.")
        except (NoOptuna, NoSampler, Damaged) as error:
            fail(str(error), 1)
