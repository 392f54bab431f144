"""`overdrive report`: the evidence behind a plan, in the terminal or as one HTML file."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overdrive.cli.json_output import STDOUT, console_beside, json_option, write_json
from overdrive.cli.line import fail, is_script, parse_program, plan_beside
from overdrive.cli.report_search import in_study, is_search, shown
from overdrive.cli.run import announce_removed
from overdrive.core.atomic_file import write_atomically
from overdrive.core.json_data import to_json
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.plan import Plan, PlanError
from overdrive.core.plan.evidence import recall
from overdrive.core.tune_result import VERSION, Kept, MachineSummary, NotKept, SideFigures, TuneResult
from overdrive.report.comparison import compared, show
from overdrive.report.comparison import page as comparison_page
from overdrive.report.html import page
from overdrive.report.reading import read, word
from overdrive.report.terminal import table
from overdrive.techniques.catalogue import catalogue

if TYPE_CHECKING:
    from rich.console import Console

_NO_EVIDENCE = (
    "The measurements behind this plan are not on this machine, or the plan was edited since: "
    "what follows is only what the plan itself says."
)


class CannotReport(Exception):
    """Nothing was written; the message is one sentence for people."""


def report(path: Path, output: Path | None, everything: bool = False, json_path: Path | None = None) -> None:
    """Print the evidence behind the plan in this file, or write it to `output` as HTML, or to `json_path` as JSON.

    Args:
        path: a plan, what `tune --json`, `search --json` or `report --json` wrote, or the folder of `search --study`.
        everything: name also what was not tried.

    Raises:
        CannotReport: the plan cannot be read, or the report cannot be written.
    """
    path = in_study(path)
    _check_apart([path], output, json_path)
    console = console_beside(json_path)
    if is_search(found := _json_in(path)):
        return _report_search(path, found, output, json_path, console)
    result = result_in(path)
    _write(to_json(result), lambda: page(result), output, json_path, console)
    if output is None and json_path is None:
        table(result, console, everything)


def _json_in(path: Path) -> Any:
    """None where it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _report_search(path: Path, data: Any, output: Path | None, json_path: Path | None, console: Console) -> None:
    try:
        html, text = shown(data, console)
    except ValueError as error:
        raise CannotReport(f"{path} is {error}.") from None
    _write(data, lambda: html, output, json_path, console)
    if output is None and json_path is None:
        sys.stdout.write(text)


def compare(paths: tuple[Path, Path], output: Path | None, json_path: Path | None = None) -> None:
    """Print two results side by side, or write them to `output` as HTML, or what differs to `json_path` as JSON.

    Raises:
        CannotReport: as `report`.
    """
    _check_apart(paths, output, json_path)
    found = compared(*map(result_in, paths))
    names = (str(paths[0]), str(paths[1]))
    console = console_beside(json_path)
    _write(found.as_data(names), lambda: comparison_page(found, names), output, json_path, console)
    if output is None and json_path is None:
        show(found, names, console)


def result_in(path: Path) -> TuneResult:
    """
    Raises:
        CannotReport: the file is neither a plan nor a result, or cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")  # any line ends: those of a checkout may differ from what was written
    except (OSError, UnicodeDecodeError):
        text = ""  # the plan's reader has a sentence for each
    if text.lstrip()[:1] == "{":
        return _of_json(path, text)
    try:
        plan = Plan.read(path, catalogue())
        announce_removed(plan)
    except PlanError as error:
        raise CannotReport(str(error)) from None
    measured = evidence(text)
    # The plan lies where it is now, not where the tune wrote it.
    return replace(read(TuneResult, measured), plan=str(path)) if measured else from_plan(plan)


def _of_json(path: Path, text: str) -> TuneResult:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise CannotReport(f"{path} is no JSON, and no plan.") from None
    if not isinstance(data, dict) or not {"verdict", "techniques", "machine"} <= data.keys():
        raise CannotReport(f"{path} is not what `overdrive tune --json` writes.")
    if data.get("version", VERSION) != VERSION:
        raise CannotReport(f"{path} is of version {word(data['version'], 20)}; this Overdrive reads {VERSION}.")
    return read(TuneResult, data)


def _check_apart(paths: Sequence[Path], output: Path | None, json_path: Path | None) -> None:
    for path, place in itertools.product(paths, (output, json_path)):
        if place is not None and place != STDOUT and _same_file(path, place):
            raise CannotReport(f"{place} is the plan itself: choose another file for the report.")


def _write(data: Any, html: Callable[[], str], output: Path | None, json_path: Path | None, console: Console) -> None:
    try:
        write_json(json_path, data)
        if output is not None:
            write_atomically(output, html())
    except OSError as error:
        raise CannotReport(f"The report cannot be written to {error.filename} ({error.strerror}).") from None
    if output is not None:
        console.print(f"report  {output}", markup=False, soft_wrap=True)


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
        baseline=read(SideFigures, dict(plan.baseline)),
        tuned=read(SideFigures, dict(plan.tuned)),
        techniques=tuple(
            Kept(each.name, each.settings, str(each.contract), each.verdict, each.speedup) for each in plan.techniques
        ),
        rejected=tuple(NotKept(each.name, each.settings, each.reason) for each in plan.rejected),
        tuning_seconds=plan.tuning_seconds,
        break_even_steps=plan.break_even_steps,
        machine=read(MachineSummary, dict(plan.machine)),
        versions=plan.versions,
        date=plan.created,
        inference=plan.inference,
    )


def _no_plan(words: Sequence[str]) -> str:
    """The first word that cannot be a plan's name: an option, or one beyond the second; "" where all can be."""
    return next((each for place, each in enumerate(words) if place == 2 or each.startswith("-")), "")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)  # also by a link
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


@click.command(context_settings={"ignore_unknown_options": True, "max_content_width": 100})
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it as one HTML file.")
@click.option("--all", "everything", is_flag=True, help="Also list the techniques that were not tried, and why.")
@json_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PLAN [PLAN] | SCRIPT")
def command(output: Path | None, everything: bool, json_path: Path | None, words: tuple[str, ...]) -> None:
    """Show the evidence behind a plan, in the terminal, as one HTML file or as JSON.

    For a SCRIPT (a name in .py, or -m MODULE), that of the plan beside it; the script's own arguments are ignored.
    Two plans are shown side by side: those of two machines, say, or of two versions. A file of `tune --json` works
    like a plan, and contains the evidence. So do a file of `search --json`, and the file that a search names when it
    begins, which is written anew after each run.
    """
    try:
        if words[0] == "-m" or is_script(words[0]):
            report(plan_beside(parse_program(words)), output, everything, json_path)
        elif wrong := _no_plan(words):
            raise click.UsageError(f"No such option, and no third plan: {wrong}.", click.get_current_context())
        elif len(words) == 2:
            compare((Path(words[0]), Path(words[1])), output, json_path)
        else:
            report(Path(words[0]), output, everything, json_path)
    except CannotReport as error:
        fail(str(error))
