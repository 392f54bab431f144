"""`overdrive run`: the whole program under a plan, with the output, files and exit code of `python SCRIPT`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from overdrive.atomic_file import write_atomically
from overdrive.commands.beginning import Beginning
from overdrive.launch import end_as_python_would, execute
from overdrive.plan import Plan
from overdrive.program import Program, ProgramError
from overdrive.recording import Recorder
from overdrive.seams.hub import reason_of
from overdrive.session import Chosen, Session
from overdrive.techniques.catalogue import catalogue


def say(text: str) -> None:
    print(f"overdrive: {text}", file=sys.stderr)


def announce(name: str, reason: str) -> None:
    say(f"left out {name}: {reason}")


def read_plan(path: Path, program: Program) -> Plan:
    """
    Raises:
        PlanError: the plan cannot be used.
        OSError: it cannot be read.
    """
    plan = Plan.read(path, catalogue())
    if plan.program != program.name:
        say(f"{path} was found for {plan.program}, not for {program.name}; using it all the same")
    return plan


def run(
    program: Program, techniques: list[Chosen], plan_name: str | None, record: Path | None, beginning: Beginning
) -> int:
    """Run it, and return the exit code that Python would have given.

    A technique that says so (`Technique.replaces_framework`) may make a program fail that would not have: where the
    program fails under it before its first step is done, it is run again from its beginning, without that technique.
    """
    recorder = Recorder(losses=record is not None)
    process = os.getpid()
    session = Session([each for each in techniques if each[0] not in beginning.left_out], [recorder], announce)
    for name, reason in beginning.left_out.items():
        session.seams.leave_out(name, reason)
    failure: BaseException | None = None
    try:
        with session:
            execute(program)
    except ProgramError as error:
        say(str(error))
        return 2
    except BaseException as error:
        failure = error
    if os.getpid() == process:  # else a fork of the program that came back up here
        if isinstance(failure, Exception):
            _begin_again_if_due(session, failure, recorder.clock.steps, beginning)
        if record is not None:
            _write_record(record, program, recorder, session, failure)
        say(summary(recorder, session, plan_name))
    return end_as_python_would(failure) if failure else 0  # the program's own traceback stands last


def _begin_again_if_due(session: Session, failure: Exception, steps: int, beginning: Beginning) -> None:
    """The program failed, maybe for a technique that has another framework compute: then this does not return."""
    arrived = set(session.seams.frameworks)
    techniques = [catalogue()[name] for name in session.active]
    suspects = [each.name for each in techniques if each.replaces_framework and arrived & set(each.frameworks)]
    if not suspects:
        return
    if not steps:
        reason = f"the program failed under it before its first step ({reason_of(failure)}), and was begun again"
        with contextlib.suppress(OSError):  # the folder that it was begun in is gone
            beginning.again_without(dict.fromkeys(suspects, reason))
    say(f"the program failed under {' and '.join(suspects)}; `overdrive run --no-plan` runs it as it is")


def summary(recorder: Recorder, session: Session, plan_name: str | None) -> str:
    steps = recorder.clock.steps
    if not steps:
        return "no training step was seen in this program"
    rate = recorder.samples_per_second()
    pace = recorder.seconds_per_step()
    speed = f", {rate:,.0f} samples/s" if rate else f", {1 / pace:,.1f} steps/s" if pace else ""
    applied = ", ".join(session.active) or "nothing to apply"
    under = "no plan" if plan_name is None else f"{plan_name} ({applied})"
    return f"{steps:,} steps{speed}, {under}"


def _write_record(
    path: Path, program: Program, recorder: Recorder, session: Session, failure: BaseException | None
) -> None:
    record: dict[str, Any] = {
        "program": program.command(),
        "steps": recorder.clock.steps,
        "samples": recorder.samples,
        "samples_per_s": recorder.samples_per_second(),
        "seconds_per_step": recorder.seconds_per_step(),
        "losses": [[loss.hex() for loss in step] for step in recorder.losses()],
        "parameters": recorder.parameters_hash(),
        "techniques": session.active,
        "left_out": session.seams.left_out,
        "error": type(failure).__name__ if failure and not isinstance(failure, SystemExit) else None,
    }
    try:
        write_atomically(path, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        say(f"the record could not be written to {path}: {error.strerror}")
