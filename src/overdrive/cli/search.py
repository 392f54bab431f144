"""`overdrive search`: what of a program can be varied, and which values are better than its own on fresh seeds."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command
from overdrive.cli.places import CannotWrite, check_places
from overdrive.cli.values import Duration, MetricName, WishText
from overdrive.core.atomic_file import write_atomically
from overdrive.core.contract import Contract
from overdrive.core.hyperparameters import OPTION
from overdrive.core.json_data import to_json
from overdrive.core.ledger import default_path
from overdrive.core.metric import Metric
from overdrive.core.plan import Plan, PlanError
from overdrive.core.printed import series
from overdrive.core.program import Program
from overdrive.core.search_result import SearchResult
from overdrive.core.settings import Chosen
from overdrive.machine.inventory import fingerprint
from overdrive.report import search as report
from overdrive.report.search_page import page
from overdrive.search import names
from overdrive.search.domain import Domain, DomainError, Wish, domain_of, sensible
from overdrive.search.engine import Busy, Engine, NoOptuna
from overdrive.search.goal import Goal, GoalError
from overdrive.search.listing import CannotList, ParameterList, listing
from overdrive.search.parameters import Parameter, UnknownParameter, Values, find, set_in, written
from overdrive.search.runs import Runs
from overdrive.search.search import CannotSearch, Search, shown
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.pool import TrialPool


def show_list(program: Program, json_path: Path | None) -> int:
    """
    Raises:
        CannotList: the program fails by itself, or cannot be watched.
    """
    with TrialPool() as pool:
        found = listing(pool, program)
    rows = [(each.name, each.default, each.place, each.effect, str(sensible(each) or "")) for each in found.parameters]
    report.parameters(rows, program.command(), Console(highlight=False))
    if json_path:
        fields = ("name", "default", "place", "moves", "range")
        listed = [dict(zip(fields, row, strict=True)) for row in rows]
        data = {"version": 1, "program": program.command(), "parameters": listed}
        write_atomically(json_path, json.dumps(data, indent=1) + "\n")
    return 0


def search(
    program: Program,
    wishes: Sequence[Wish],
    metric: Metric,
    goal: Goal,
    budget: float,
    plan_path: Path | None,
    json_path: Path | None,
    page_path: Path,
) -> int:
    """Returns the exit code: 0 where the search came to its end, whatever it found.

    Raises:
        CannotList, CannotSearch, UnknownParameter, DomainError, NoOptuna, Busy, PlanError.
    """
    console = Console(highlight=False)
    techniques = _techniques(plan_path)
    with TrialPool() as pool:
        found = listing(pool, program)
        chosen, domains = _chosen(found, wishes)
        console.print(
            f"Searching {shown_domains(domains)} of {program.command()} for {_aim(metric, goal)}, "
            f"for at most {budget / 60:.3g} minutes{f', under {plan_path}' if techniques else ''}.",
            markup=False,
            soft_wrap=True,
        )
        runs = Runs(pool, program, found, metric, goal, techniques)
        engine = Engine(_journal(program, domains, metric, goal, techniques), domains, seed=1)
        if already := len(engine.runs()):
            console.print(f"Going on from a search that was broken off: {already} runs are known.")
        try:
            order = Search(chosen, domains, metric, goal, budget, engine, runs.run, _teller(console))
            result = _searched(order, runs, program, plan_path if techniques else None)
        finally:
            engine.close()
    if json_path:
        write_atomically(json_path, json.dumps(to_json(result), indent=1) + "\n")
    write_atomically(page_path, page(result))
    report.search(result, console)
    console.print(f"\nreport  {page_path}", markup=False, soft_wrap=True)
    return 0


def _searched(order: Search, runs: Runs, program: Program, plan_path: Path | None) -> SearchResult:
    defaults = order.defaults(lambda: _hint(runs.output))
    runs.total = defaults.progress
    try:
        trials = order.trials(defaults)
    except KeyboardInterrupt:
        best = order.best(defaults, order.engine.runs())
        what = f"{shown(best.values)}: {best.metric}" if best else "the defaults"
        order.tell(f"best so far, not compared on fresh seeds: {what}")
        raise
    best = order.best(defaults, trials)
    comparison = order.comparison(defaults, best) if best else None
    result = order.result(program.command(), defaults, trials, comparison, best)
    if best is None:
        return replace(result, plan=str(plan_path or ""))
    command, edits = _command(program, order.parameters, best.values)
    return replace(result, command=command, edits=edits, plan=str(plan_path or ""))


def _chosen(found: ParameterList, wishes: Sequence[Wish]) -> tuple[tuple[Parameter, ...], dict[str, Domain]]:
    if not wishes:
        wishes = [Wish(name) for name in names.USUAL if any(each.name == name for each in found.parameters)]
        if not wishes:
            raise CannotSearch("Neither a learning rate nor a batch size was found: name what to vary with --vary.")
    parameters = [find(found.parameters, wish.name) for wish in wishes]
    if len({each.name for each in parameters}) < len(parameters):
        raise DomainError("A parameter is named twice with --vary")
    domains = {each.name: domain_of(each, wish) for each, wish in zip(parameters, wishes, strict=True)}
    return tuple(parameters), domains


def _techniques(plan_path: Path | None) -> tuple[Chosen, ...]:
    """Of the plan; what changes the training itself is the search's own."""
    if plan_path is None:
        return ()
    plan = Plan.read(plan_path, catalogue())
    return tuple((each.name, each.settings) for each in plan.techniques if each.contract is not Contract.OPEN)


def _journal(
    program: Program, domains: dict[str, Domain], metric: Metric, goal: Goal, techniques: Sequence[Chosen]
) -> Path:
    """One for each search: its program, what is varied and for what; a longer budget goes on with it."""
    wanted = repr((sorted(domains.items()), metric.name, goal, techniques))
    parts = (program.identity(), wanted, fingerprint())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return default_path().parent / "searches" / f"{program.stem[:40]}-{key}.journal"


def _hint(output: str) -> str:
    """Words of the program's output that stand before numbers."""
    words = {template.split("#")[0].strip(" :=,|[(") for template in series(output)}
    known = sorted(word for word in words if word and len(word) < 30)[:6]
    return f" It prints numbers after: {', '.join(known)}." if known else ""


def _aim(metric: Metric, goal: Goal) -> str:
    if goal.target is not None:
        return f"{metric.name} {goal.target:g} soonest"
    return f"the {'largest' if goal.maximize else 'smallest'} {metric.name}"


def shown_domains(domains: dict[str, Domain]) -> str:
    return " and ".join(f"{name} ({domain})" for name, domain in domains.items())


def _command(program: Program, parameters: Sequence[Parameter], values: Values) -> tuple[str, tuple[str, ...]]:
    """The command line of a configuration, and what of it stands in the program's text."""
    chosen, _ = set_in(program, parameters, values)
    edits = tuple(
        f"{each.place}: {written(values[each.name])} instead of {written(each.default)}"
        for each in parameters
        if each.places[0].kind != OPTION
    )
    words = (*(("-m",) if chosen.module else ()), chosen.target, *chosen.arguments)
    return shlex.join(("python", *words)), edits


def _teller(console: Console) -> report.Teller:
    return report.Teller(console)


@program_command
@click.option("--list", "only_list", is_flag=True, help="Show what can be varied, and where it was found.")
@click.option(
    "--vary",
    "wishes",
    type=WishText(),
    multiple=True,
    metavar="NAME[=VALUES]",
    help="A parameter: lr=1e-4..1e-1:log, batch-size=32,64,128, or a name alone for its usual range. "
    "Learning rate and batch size, where none is named.",
)
@click.option(
    "--metric",
    type=MetricName(),
    help="What is to become better, at the end of a run: a word before a number in the program's output (Accuracy), a "
    "regular expression with one group, or evaluate() for what a function returned. The training loss, if not given.",
)
@click.option("--goal", default="best", show_default=True, help="best, or a value of the metric: '97 soonest'.")
@click.option("--maximize", "direction", flag_value="maximize", help="More of the metric is better.")
@click.option("--minimize", "direction", flag_value="minimize", help="Less of it is. Told by its name, if not given.")
@click.option("--budget", type=Duration(), default="20m", show_default=True, help="Time to spend at most.")
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="The speed plan of all runs.")
@click.option("--no-plan", is_flag=True, help="Under no plan, though one lies beside the script.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the report, an HTML page.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result as JSON.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    only_list: bool,
    wishes: tuple[Wish, ...],
    metric: Metric | None,
    goal: str,
    direction: str | None,
    budget: float,
    plan_path: Path | None,
    no_plan: bool,
    output: Path | None,
    json_path: Path | None,
    words: tuple[str, ...],
) -> None:
    """Search the hyperparameters of a program that stays as it is.

    Each configuration is a whole run of the program, in a process of its own whose files are thrown away. The best one
    is then compared with the program's defaults on fresh seeds: "no better than your defaults" is a result. A search
    that was broken off goes on with the same command.

    Exit code: 0 where the search came to its end, whatever it found; 1 where the program failed or has no such metric;
    2 where the command line is wrong; 130 after Ctrl-C.
    """
    program = parse_program(words)
    if plan_path and no_plan:
        fail("Give either --plan or --no-plan.")
    if plan_path is None and not no_plan and program.plan_path().exists():
        plan_path = program.plan_path()
    metric = metric or Metric()
    with faults_as_sentences():
        try:
            page_path = output or program.plan_path().with_name(f"{program.stem}.search.html")
            check_places(program, {"-o": page_path, "--json": json_path})
            if only_list:
                sys.exit(show_list(program, json_path))
            aim = Goal.parse(goal, metric, direction or "")
            sys.exit(search(program, wishes, metric, aim, budget, plan_path, json_path, page_path))
        except (CannotWrite, GoalError, UnknownParameter, PlanError) as error:
            fail(str(error))
        except DomainError as error:
            fail(f"{error}.")
        except (CannotList, CannotSearch, NoOptuna, Busy) as error:
            fail(str(error), 1)
