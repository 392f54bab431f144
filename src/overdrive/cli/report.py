"""`overdrive report`: the evidence behind a plan, in the terminal or as one HTML file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from overdrive.cli.json_output import STDOUT, console_beside, json_option, write_json
from overdrive.cli.line import fail, is_script, parse_program, plan_beside
from overdrive.cli.run import announce_removed
from overdrive.core.atomic_file import write_atomically
from overdrive.core.json_data import to_json
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.plan import Plan, PlanError
from overdrive.core.plan.evidence import recall
from overdrive.core.tune_result import Kept, MachineSummary, NotKept, Side, TuneResult
from overdrive.report.html import page
from overdrive.report.reading import read
from overdrive.report.terminal import table
from overdrive.techniques.catalogue import catalogue

_NO_EVIDENCE = (
    "The measurements behind this plan are not on this machine, or the plan was edited since: "
    "what follows is only what the plan itself says."
)


class CannotReport(Exception):
    """Nothing was written; the message is one sentence for people."""


def report(path: Path, output: Path | None, everything: bool = False, json_path: Path | None = None) -> None:
    """Print the evidence behind the plan in this file, or write it to `output` as HTML, or to `json_path` as JSON.

    Args:
        everything: name also what was not tried.

    Raises:
        CannotReport: the plan cannot be read, or the report cannot be written.
    """
    for place in (output, json_path):
        if place is not None and place != STDOUT and _same_file(path, place):
            raise CannotReport(f"{place} is the plan itself: choose another file for the report.")
    try:
        plan = Plan.read(path, catalogue())
        announce_removed(plan)
        text = path.read_text(encoding="utf-8")  # any line ends: those of a checkout may differ from what was written
    except PlanError as error:
        raise CannotReport(str(error)) from None
    except (OSError, UnicodeDecodeError):
        raise CannotReport(f"{path} changed while it was read: try again.") from None
    measured = evidence(text)
    # The plan lies where it is now, not where the tune wrote it.
    result = replace(read(TuneResult, measured), plan=str(path)) if measured else from_plan(plan)
    console = console_beside(json_path)
    try:
        write_json(json_path, to_json(result))
        if output is not None:
            write_atomically(output, page(result))
    except OSError as error:
        raise CannotReport(f"The report cannot be written to {error.filename} ({error.strerror}).") from None
    if output is not None:
        console.print(f"report  {output}", markup=False, soft_wrap=True)
    elif json_path is None:
        table(result, console, everything)


def evidence(plan_text: str) -> dict[str, Any] | None:
    """The result of the tune that wrote this plan on this machine, or None. No ledger is made for asking."""
    if not default_path().exists():
        return None
    with Ledger.open(default_path()) as ledger:
        found = recall(ledger, plan_text)
        if ledger.notice:
            print(f"overdrive: {ledger.notice}", file=sys.stderr)
    return found


def from_plan(plan: Plan) -> TuneResult:
    """What a plan says of itself, with a notice that it is no more than that."""
    return TuneResult(
        notice=_NO_EVIDENCE,
        program=plan.program,
        contract=str(plan.contract),
        verdict=plan.verdict,
        speedup=plan.speedup,
        unconfirmed=plan.unconfirmed,
        noise_floor=plan.noise_floor,
        baseline=read(Side, dict(plan.baseline)),
        tuned=read(Side, dict(plan.tuned)),
        techniques=tuple(
            Kept(each.name, each.settings, str(each.contract), each.verdict, each.speedup) for each in plan.techniques
        ),
        rejected=tuple(NotKept(each.name, each.settings, each.reason) for each in plan.rejected),
        tuning_seconds=plan.tuning_seconds,
        break_even_steps=plan.break_even_steps,
        machine=read(MachineSummary, dict(plan.machine)),
        versions=plan.versions,
        date=plan.created,
    )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)  # also by a link
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


@click.command(context_settings={"ignore_unknown_options": True, "max_content_width": 100})
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it as one HTML file.")
@click.option("--all", "everything", is_flag=True, help="Name also the techniques that were not tried, and why.")
@json_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PLAN | SCRIPT")
def command(output: Path | None, everything: bool, json_path: Path | None, words: tuple[str, ...]) -> None:
    """The evidence behind a plan, in the terminal, as one HTML file or as JSON.

    Of a SCRIPT (a name in .py, or -m MODULE) it is that behind the plan beside it; words that follow are the script's,
    and change nothing.
    """
    if words[0] == "-m" or is_script(words[0]):
        plan_path = plan_beside(parse_program(words))
    else:
        plan_path = Path(words[0])
        if words[0].startswith("-") or len(words) > 1:
            word = words[0] if words[0].startswith("-") else words[1]
            raise click.UsageError(f"No such option, and no second plan: {word}.", click.get_current_context())
    try:
        report(plan_path, output, everything, json_path)
    except CannotReport as error:
        fail(str(error))
