"""`overdrive tune`: search, then write the plan, the report and the JSON, and print the table."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import (
    fail,
    faults_as_sentences,
    kept_in,
    parse_trial_program,
    program_argument,
    program_command,
    repeat,
    typed,
    why_it_fails,
)
from overdrive.cli.places import CannotWrite, check_places
from overdrive.cli.values import (
    NAMES,
    POOL,
    PRICE,
    RANKS_TO_TRY,
    Duration,
    Parsed,
    Whole,
    margin_option,
    metric_option,
    stdin_option,
)
from overdrive.core.atomic_file import is_stream, write_atomically
from overdrive.core.contract import Contract
from overdrive.core.json_data import to_json
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.metric import Metric
from overdrive.core.objective import Objective
from overdrive.core.one_at_a_time import one_at_a_time
from overdrive.core.plan import Plan, PlanError
from overdrive.core.plan.evidence import remember
from overdrive.core.tune_result import Energy, Price, TuneResult
from overdrive.core.units import duration
from overdrive.evidence.speed import Verdict
from overdrive.machine.energy import EnergyMeter
from overdrive.machine.pool.curve import Measured
from overdrive.report.html import page
from overdrive.report.live import Live
from overdrive.report.terminal import table
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.tuner.energy import energy_of
from overdrive.tuner.findings import Findings
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.result import plan_of, result_of
from overdrive.tuner.tune import tune as run_tune

# By their parameters: those that a tune's next command has as this one, whatever was found.
_TYPED_AGAIN = ("metric", "margin", "output", "json_path", "price", "runs", "pool", "force")

_TWO_AT_ONCE = (
    "two tunes at once would take the cores from each other. Wait for its end, or stop it: what it established by then "
    "is kept, and the same command goes on from there."
)


@dataclass(frozen=True)
class Outputs:
    """Where a tune's result goes, and what is told of it.

    Attributes:
        force: replace a plan that has techniques even by one that has none.
        everything: name also what was not tried.
        price: of the machine; the result is told in money too.
    """

    plan: Path
    json: Path | None = None
    force: bool = False
    everything: bool = False
    price: Price | None = None

    @property
    def report(self) -> Path:
        # Behind a plan that goes into a pipe, `-o >(...)`, it would make one text of both.
        return Path(os.devnull) if is_stream(self.plan) else self.plan.with_suffix(".html")


def tune(request: TuneRequest, outputs: Outputs) -> int:
    """
    Returns the exit code: 0 where the tune came to its end, 1 where the program could not be tuned.

    Raises:
        CannotWrite: there is no place to write the plan, the report or the JSON.
        KeyboardInterrupt: Ctrl-C stopped it. What was proved by then is written, and kept for the same command.
    """
    program = request.program
    check_places(program, {"-o": outputs.plan, "the report": outputs.report, "--json": outputs.json})
    ledger = Ledger.open(default_path())
    checkpoint = TuneCheckpoint(ledger, program, request.purpose())
    # By the plan, of which there is one for all contracts and arguments; and by what both would keep in the ledger.
    plan = [] if is_stream(outputs.plan) else [f"plan {os.path.realpath(outputs.plan)}"]
    with ExitStack() as held:
        others = [held.enter_context(one_at_a_time(default_path().parent, each)) for each in (*plan, checkpoint.key)]
        other = next(filter(None, others), "")
        if not other:
            with kept_in(ledger):
                return _tune(request, outputs, ledger, checkpoint)
    print(f"overdrive: this program is being tuned already, by {other}: {_TWO_AT_ONCE}", file=sys.stderr)
    return 1


def _tune(request: TuneRequest, outputs: Outputs, ledger: Ledger, checkpoint: TuneCheckpoint) -> int:
    program, most = request.program, request.most_seconds()
    console = console_beside(outputs.json, lasts=True)
    if told := ledger.notice:
        console.print(told, markup=False)
    if checkpoint.resumes:
        console.print("Going on from a tune of this program that was broken off.")
    console.print(
        f"Tuning {program.command()} under the contract {request.contract}, for at most {duration(most)}.",
        markup=False,
    )
    with TrialPool() as pool, Live(console, most) as live:
        pool.on_fill = live.filling
        found = run_tune(request, pool, checkpoint, live)
        result = result_of(found, str(outputs.plan))
        energy = _energy(found, result, pool) if outputs.price and not found.stopped else None
        last_output = pool.last_output
    result = replace(result, price=outputs.price, energy=energy)
    if found.refusal:
        checkpoint.forget()
        if found.refusal_is_failure:
            repeat(last_output)
        print(f"overdrive: {why_it_fails(found.refusal)}", file=sys.stderr)
        return 1
    _keep(found, result, outputs, ledger, console)
    if found.stopped:
        raise KeyboardInterrupt
    checkpoint.finished(result.date, to_json(result))
    if ledger.notice != told:  # a disk was full, say: `overdrive report` has no more than the plan then
        console.print(ledger.notice, markup=False)
    ledger.close()
    return 0


def _energy(found: Findings, result: TuneResult, pool: TrialPool) -> Energy | None:
    """Of a plan that was established, where the machine counts it: some ten seconds more."""
    if not found.chosen or found.verdict is not Verdict.FASTER:
        return None
    new = found.spec((each.name, each.settings) for each in found.chosen)
    length = result.own_run.steps if result.own_run else None
    step = found.control.old_side.seconds_per_step if found.control else 0.0
    with EnergyMeter() as meter:
        return energy_of(pool, found.reference(), new, meter, length, step)


def _keep(found: Findings, result: TuneResult, outputs: Outputs, ledger: Ledger, console: Console) -> None:
    """Write the plan, the report and the JSON, and print the table. A plan that is there and is better stays."""
    made, path = plan_of(found, result), outputs.plan
    report = outputs.report
    if stays := "" if outputs.force else _why_it_stays(found, made, path):
        report = path.with_suffix(".latest.html")
        kept = f"{stays}, so the plan {path} and its report stay as they were; --force replaces them."
        # It tells of no plan that is there; the plan that is keeps its own report.
        result = replace(result, plan="", notes=(*result.notes, kept))
    else:
        plan = made.dumps({name: each.summary() for name, each in catalogue().items()})
        write_atomically(path, plan)
        remember(ledger, plan, to_json(result))
    write_atomically(report, page(result))
    write_json(outputs.json, to_json(result))
    table(result, console, outputs.everything)
    console.print(f"\nplan    {path}{' (as it was)' if stays else ''}\nreport  {report}", markup=False)


def _why_it_stays(found: Findings, made: Plan, path: Path) -> str:
    """Why the plan that is there is not replaced by this one, as the beginning of a sentence; empty where it is.

    One that has techniques is not by one that has none, nor one that was confirmed by one that was stopped before that.
    """
    if made.techniques and not (found.stopped and made.unconfirmed):
        return ""
    nothing = "" if made.techniques else "Nothing was established"
    try:
        there = _plan_at(path)
    except (OSError, UnicodeError, PlanError):  # of another version, say: it may have some
        return nothing or "What is there cannot be read as a plan, and this one was not confirmed"
    if there is None or not there.techniques:
        return ""
    return nothing or ("" if there.unconfirmed else "This tune was stopped before its plan was confirmed")


def _plan_at(path: Path) -> Plan | None:
    """None where there is none.

    Raises:
        OSError, UnicodeError, PlanError: it cannot be read.
    """
    if is_stream(path) or not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    return Plan.loads(text, catalogue()) if text.strip() else None


@program_command
@click.option(
    "--contract",
    type=click.Choice([str(level) for level in Contract if level is not Contract.OPEN]),
    default="rounding",
    show_default=True,
    help="How much may change: exact = every bit the same; rounding = other orders of summation; "
    "statistical = the same result within the noise of the seed.",
)
@click.option(
    "--budget",
    type=Duration(auto=True),
    default="auto",
    show_default=True,
    help="Time to spend at most, such as 5m. auto: as long as it pays off over --runs, and ten minutes at most.",
)
@click.option(
    "--runs",
    type=Whole(1),
    default=10,
    show_default=True,
    help="How many runs like this one you will make: with --budget auto the tune takes no longer than they would.",
)
@click.option(
    "--price",
    type=PRICE,
    metavar="PRICE",
    help="What the machine costs, such as 2.50/h: states gains in money, and in energy if the machine counts it.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the plan.")
@json_option
@metric_option
@margin_option
@stdin_option
@click.option(
    "--objective",
    type=Parsed("objective", Objective.parse),
    default="time",
    show_default=True,
    help="What to save: time, memory, or time within a limit of peak memory (time-under-memory=8GB); for a program "
    "that only calls its model, the time of a call (latency, or p99=20ms).",
)
@click.option(
    "--techniques",
    "only",
    type=NAMES,
    default="",
    metavar="NAME,...",
    help="Try only these. One whose contract is open (it changes the training itself) is tried only when named here.",
)
@click.option(
    "--ranks",
    type=RANKS_TO_TRY,
    metavar="N|auto",
    help="Also try the plan on N processes, with the same numbers as one; auto: on 2, 4, ... while that is faster.",
)
@click.option(
    "--pool",
    type=POOL,
    metavar="FILE",
    help="With --ranks: the FILE of doctor --pool --json, to compare with the time of the same exchanges on ranks.",
)
@click.option("--force", is_flag=True, help="Replace a plan that has techniques even if this tune finds none.")
@click.option("--all", "everything", is_flag=True, help="Also list the techniques that were not tried, and why.")
@program_argument("SCRIPT [ARGS]...")
def command(
    contract: str,
    budget: float | None,
    runs: int,
    price: Price | None,
    output: Path | None,
    json_path: Path | None,
    metric: Metric | None,
    margin: float | None,
    stdin: str | None,
    objective: Objective,
    only: frozenset[str],
    ranks: int | None,
    pool: Measured | None,
    force: bool,
    everything: bool,
    words: tuple[str, ...],
) -> None:
    """Find the fastest plan that keeps the contract, by duels against the program as it is.

    Writes the plan and a report beside the script. The script and its files are never changed. If nothing is
    established, an existing plan that has techniques is kept, with its report.

    Exit code: 0 if the tune came to its end, whatever it found; 1 if the program failed or could not be tuned;
    2 if the command line is wrong or the plan cannot be written.
    """
    if pool and ranks is None:
        fail("--pool is of what goes between --ranks: --ranks auto, or a number of them.")
    program = parse_trial_program(words, stdin)
    again = typed(click.get_current_context(), _TYPED_AGAIN)
    level = Contract(contract)
    request = TuneRequest(program, level, budget, runs, metric, margin, objective, only, ranks, pool, again)
    outputs = Outputs(output or program.plan_path(), json_path, force, everything, price)
    with faults_as_sentences(wrong=CannotWrite):
        sys.exit(tune(request, outputs))
