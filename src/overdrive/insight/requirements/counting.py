"""Counts and measures a program's needs, in trials: one that is counted in, and others that nothing watches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import Block, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import whole_units_of
from overdrive.insight.requirements.needs import Needs
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_COUNTER = "overdrive.worker.needs"
# Lets the C library give every large block back as soon as it is freed, so that the peak is what is needed. As it is,
# it keeps them; the peak is then as much a matter of its habits. Slow, and only for measuring memory.
_BLOCKS_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
_COUNTED_STEPS = 5  # see overdrive.worker.needs: two before, three counted
_WARM_UP = 3
_SECONDS = 4.0  # of steps that are timed, at most
_MOST_STEPS = 60
_BLOCKS = 8
_FEWEST_BLOCKS = 2  # of a program that comes to its end meanwhile
_PROFILED = 3  # steps that are taken apart
_WANTED = 30  # steps of a program, with which all of this is done
# Processes of one program differ, by as their memory happens to lie: steps of 1 ms took 0.86 to 1.36 with one thread,
# those of a CNN 48 to 55. Where steps are short, several are timed, and the fastest counts.
_SHORT_STEP = 0.1  # seconds
_PROCESSES = 4


class CannotCount(Exception):
    """The program's needs could not be found out; the message is one sentence for people."""


def count(
    program: Program, threads: int = 0, tell: Callable[[str], None] = lambda _: None, memory: bool = True
) -> Needs:
    """Runs the program's first steps three times, isolated as in a tune; more often where they are short.

    Args:
        threads: of the parallel operations; 0: as the program has it.
        memory: measure its peak too, in a trial of its own on a CPU.

    Raises:
        CannotCount: it fails, or makes too few steps.
    """
    plain = TrialSpec(program, threads=threads)
    with TrialPool() as pool:
        tell("Counting what a step needs.")
        try:
            report = _counted(pool, plain)
        except _Answers:
            plain = replace(plain, clock="inference")
            report = _counted(pool, plain)
        tell(f"Measuring some {plain.unit}s that nothing watches.")
        blocks, peak, facts = _measured(pool, plain)
        for _ in range(_PROCESSES - 1 if min(blocks) < _SHORT_STEP else 0):
            with suppress(CannotCount):  # what was measured stands
                blocks += _measured(pool, plain)[0]
        # The shortest block: on a shared machine others only ever add to it, and limits are measured likewise.
        seconds = min(blocks)
        kept = 0
        if memory and report["device"] == "cpu":
            tell(f"Measuring the memory of the first {plain.unit}s.")
            kept, peak = peak, _peak(pool, plain)
    needs = Needs.from_report(report)
    return replace(
        needs,
        inference=plain.clock == "inference",
        step_seconds=seconds,
        usual_seconds=statistics.fmean(blocks),
        data_seconds=seconds * facts.share("data"),
        samples=facts.samples_per_step,
        measured_peak=peak,
        kept_peak=kept,
        notes=("the program's compiled parts were counted uncompiled",) if facts.own_compile else (),
    )


class _Answers(Exception):
    """It trains nothing: its steps are the calls of its model."""


def _counted(pool: TrialPool, plain: TrialSpec) -> Mapping[str, Any]:
    trial = Trial(pool, replace(plain, observers=(_COUNTER,)))
    report: Mapping[str, Any] | None = None
    try:
        trial.first_step()
        while report is None and trial.step < _COUNTED_STEPS + 3:  # several optimizers: it may take one more
            trial.run(1)
            report = trial.observed().get(_COUNTER)
        if reason := trial.left_out.get(_COUNTER):
            raise CannotCount(f"The program's operators could not be counted: {reason}.")
    except TrialOver as over:
        if over.exit_reason.kind == "answers":
            raise _Answers from None
        report = over.observed.get(_COUNTER)
        if report is None:
            raise CannotCount(_why(over, trial)) from None
    finally:
        trial.stop()
    if report is None:
        raise CannotCount("The program's operators could not be counted: nothing was reported.")
    return report


def _measured(pool: TrialPool, plain: TrialSpec) -> tuple[list[float], int, Facts]:
    """Seconds of a step in each of some blocks, bytes at the peak, and what the program is like."""
    trial = Trial(pool, plain)
    facts: Facts | None = None
    blocks: list[Block] = []
    try:
        trial.first_step()
        trial.run(_WARM_UP)
        trial.run(_PROFILED, profile=True)
        facts = trial.facts()
        each = max(1, min(_MOST_STEPS // _BLOCKS, int(_SECONDS / _BLOCKS / max(1e-6, facts.step_seconds))))
        until = time.monotonic() + 2 * _SECONDS
        while len(blocks) < _BLOCKS and time.monotonic() < until:
            blocks.append(trial.run(each))
    except TrialOver as over:
        if not over.exit_reason.by_itself or facts is None or len(blocks) < _FEWEST_BLOCKS:
            raise CannotCount(_why(over, trial)) from None
    finally:
        trial.stop()
    return [block.seconds / block.steps for block in blocks], blocks[-1].peak_memory, facts


def _peak(pool: TrialPool, plain: TrialSpec) -> int:
    """Bytes of the process at most, in as many steps as were counted."""
    trial = Trial(pool, replace(plain, environment=_BLOCKS_RETURNED))
    try:
        trial.first_step()
        return trial.run(_COUNTED_STEPS - 1).peak_memory
    except TrialOver as over:
        raise CannotCount(_why(over, trial)) from None
    finally:
        trial.stop()


def _why(over: TrialOver, trial: Trial) -> str:
    if over.exit_reason.kind == "hang":
        return f"The program stopped making steps ({over.exit_reason.detail})."
    if said := over.exit_reason.unwatched:
        return said
    if over.exit_reason.kind == "trains":
        said = "The program calls its model for long before it trains: those calls are no steps of it"
        return f"{said} ({over.exit_reason.detail})."
    if over.exit_reason.by_itself:
        steps = over.trace.steps if over.trace else 0
        if not steps:
            return "The program made no training step, and no call of a model, that Overdrive could see."
        what = whole_units_of(steps, trial.spec.clock == "inference")
        return f"The program makes {what}, and about {_WANTED} are needed: give it more by its own options or its data."
    last = trial.pool.last_output.strip().splitlines()
    said = f": {last[-1][:200].rstrip('.')}" if last and str(over) not in last[-1] else ""
    return f"The program fails by itself ({over.exit_reason}){said}."
