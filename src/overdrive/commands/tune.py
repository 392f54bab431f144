"""`overdrive tune`: search, then write the plan, the report and the JSON, and print the table."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from overdrive.core.atomic_file import write_atomically
from overdrive.core.contract import Contract
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.metric import Metric
from overdrive.core.objective import TIME, Objective
from overdrive.core.plan.evidence import remember
from overdrive.core.program import Program
from overdrive.report.html import page
from overdrive.report.live import Live
from overdrive.report.terminal import table
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.result import plan_of, result_of
from overdrive.tuner.tune import tune as run_tune


class CannotTune(Exception):
    """Nothing was started; the message is one sentence for people."""


def tune(
    program: Program,
    contract: Contract,
    budget: float,
    output: Path,
    json_path: Path | None,
    metric: Metric | None = None,
    objective: Objective = TIME,
    only: frozenset[str] = frozenset(),
) -> int:
    """`only`: the techniques to try, if not all.

    Returns the exit code: 0 where the tune came to its end, 1 where the program could not be tuned.

    Raises:
        CannotTune: there is no place to write the plan.
    """
    for path in filter(None, (output, json_path)):
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise CannotTune(
                f"Cannot write into the folder {path.parent} ({error.strerror}): choose another place with -o PLAN."
            ) from None
    console = Console(stderr=False, highlight=False)
    ledger = Ledger.open(default_path())
    request = TuneRequest(program, contract, budget, metric, objective, only)
    checkpoint = TuneCheckpoint(ledger, program, request.purpose())
    for notice in filter(None, (ledger.notice,)):
        console.print(notice, markup=False)
    if checkpoint.resumes:
        console.print("Going on from a tune of this program that was broken off.")
    console.print(
        f"Tuning {program.command()} under the contract {contract}, for at most {budget / 60:.3g} minutes.",
        markup=False,
    )
    with TrialPool() as pool, Live(console, budget) as live:
        pool.on_fill = live.filling
        found = run_tune(request, pool, checkpoint, live)
        last_output = pool.last_output
    result = result_of(found, str(output))
    if found.refusal:
        checkpoint.forget()
        if found.refusal_is_failure and last_output.strip():
            print(last_output.rstrip(), file=sys.stderr)
        print(f"overdrive: {found.refusal}", file=sys.stderr)
        return 1
    plan = plan_of(found, result).dumps({name: each.summary() for name, each in catalogue().items()})
    write_atomically(output, plan)
    report = output.with_suffix(".html")
    write_atomically(report, page(result))
    if json_path:
        write_atomically(json_path, json.dumps(result, indent=1) + "\n")
    checkpoint.finished(result)
    remember(ledger, plan, result)
    ledger.close()
    table(result, console)
    console.print(f"\nplan    {output}\nreport  {report}", markup=False)
    return 0
